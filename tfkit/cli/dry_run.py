"""One small forward pass of a built model: ids from its vocabularies, random images and features, short rows, one of them
padded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph import Batch
from ..io.finite import all_finite
from ..nn.evaluating import evaluating
from ..nn.model import Model
from ..slots.node import ImageRule, InputRule

ROWS, USUAL = 3, 8


@dataclass(frozen=True)
class DryRun:
    """The shapes of inputs and outputs by node, and the outputs that contain NaN or infinity."""

    inputs: dict[str, tuple[int, ...]]
    outputs: dict[str, tuple[int, ...]]
    not_finite: tuple[str, ...]


def trial_batch(max_lengths: Mapping[str, int | None]) -> Batch:
    """The batch of a trial. Inputs differ in length, so that a swapped axis fails."""
    lengths = {name: min(max(USUAL - number, 1), most or USUAL) for number, (name, most) in enumerate(max_lengths.items())}
    return Batch(ROWS, lengths)


def try_once(model: Model, max_lengths: Mapping[str, int | None], device: str, seed: int) -> DryRun:
    """Run the model once in eval mode and restore its mode."""
    batch = trial_batch(max_lengths)
    generator = torch.Generator().manual_seed(seed)
    inputs: dict[str, Tensor] = {}
    lengths: dict[str, Tensor] = {}
    for name, rule in model.plan.inputs.items():
        if isinstance(rule, ImageRule):
            images = torch.randn(ROWS, rule.channels, rule.size, rule.size, generator=generator, device="cpu")
            inputs[name] = images.to(device, model.dtype)
            continue
        length = batch.lengths[name]
        short = max(length - 3, 1)
        if isinstance(rule, InputRule):
            inputs[name] = _ids(rule, length, short, generator).to(device)
        else:
            inputs[name] = torch.randn(ROWS, length, rule.size, generator=generator, device="cpu").to(device, model.dtype)
        if not isinstance(rule, InputRule) or not rule.marks_padding:
            lengths[name] = torch.tensor([length] * (ROWS - 1) + [short], device="cpu").to(device)
    with evaluating(model):
        outputs: dict[str, Tensor] = model(lengths=lengths, **inputs)
    return DryRun(
        {name: tuple(ids.shape) for name, ids in inputs.items()},
        {name: tuple(tensor.shape) for name, tensor in outputs.items()},
        tuple(name for name, tensor in outputs.items() if not all_finite(tensor)),
    )


def _ids(rule: InputRule, length: int, short: int, generator: torch.Generator) -> Tensor:
    """Random ids without padding, an end token at the end of each row if the input has one, the last row padded."""
    real = torch.tensor([number for number in range(min(rule.vocab_size, 1000)) if number != rule.pad_id] or [0], device="cpu")
    ids = real[torch.randint(len(real), (ROWS, length), generator=generator, device="cpu")]
    ends = [length] * (ROWS - 1) + [short]
    for row, end in enumerate(ends):
        if rule.end_id is not None:
            ids[row, end - 1] = rule.end_id
        if rule.pad_id is not None:
            ids[row, end:] = rule.pad_id
    return ids
