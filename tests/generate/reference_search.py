"""Searches as plain as they can be written: full forward passes, one sentence, lists and sorting. Nothing is shared with
tfkit.generate, and nothing is remembered from step to step."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from tfkit import Model

END = 2
Found = tuple[float, float, list[int], bool]
"""Score, log-probability, ids, whether the end token was reached."""


@torch.no_grad()
def chances(model: Model, target: str, ids: list[int], **inputs: Tensor) -> list[list[float]]:
    """log p(. | ids up to here) after each of the ids, from one full forward pass."""
    masks = {target: torch.ones(1, len(ids), dtype=torch.bool)}
    logits = model(**inputs, **{target: torch.tensor([ids])}, masks=masks)["logits"]
    return logits[0].log_softmax(-1).tolist()


def everything(
    model: Model, target: str, prefill: list[int], limit: int, penalty: Callable[[int], float], **inputs: Tensor
) -> list[Found]:
    """Every sequence there is, best first: those that end, then those of `limit` tokens that do not."""
    size = model.plan.inputs[target].vocab_size
    others = [word for word in range(size) if word != END]
    found = []
    for length in range(1, limit + 1):
        for body in product(others, repeat=length - 1):
            each = chances(model, target, [*prefill, *body], **inputs)[len(prefill) - 1 :]
            before = sum(row[word] for row, word in zip(each[:-1], body, strict=True))
            for last in [END, *others] if length == limit else [END]:
                total = before + each[-1][last]
                found.append((total / penalty(length), total, [*body, last], last == END))
    return sorted(found, key=lambda one: (not one[3], -one[0]))


def beam(
    model: Model,
    target: str,
    prefill: list[int],
    beams: int,
    limit: int,
    penalty: Callable[[int], float],
    n_best: int = 1,
    hasty: bool = False,
    **inputs: Tensor,
) -> list[Found]:
    """Beam search to the last step, so that nothing depends on when it stops; `hasty` stops at `beams` finished ones."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[Found] = []
    for length in range(1, limit + 1):
        candidates = []
        for number, (total, ids) in enumerate(live):
            for word, chance in enumerate(chances(model, target, prefill + ids, **inputs)[-1]):
                candidates.append((-(total + chance), number, word))
        candidates.sort()
        extended = [(-cost, [*live[number][1], word]) for cost, number, word in candidates]
        for total, ids in extended[:beams]:
            if ids[-1] == END or length == limit:
                finished.append((total / penalty(length), total, ids, ids[-1] == END))
        if hasty and len(finished) >= beams:
            break
        live = [(total, ids) for total, ids in extended if ids[-1] != END][:beams]
    return sorted(finished, key=lambda one: (not one[3], -one[0]))[:n_best]
