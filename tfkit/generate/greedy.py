"""Greedy decoding: at every step the most probable token, on the incremental state (keys and values are computed once)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..errors import Fault, InputError
from ..nn.inputs import check_ids
from ..nn.model import Model
from ..slots.node import InputRule


@dataclass(frozen=True)
class Generated:
    """`ids` (B, N) without the start or the prompt, filled up with `fill_id` after a row's end; `lengths` (B,) counts the
    tokens of each row, its end token included; `finished` (B,) says which rows reached their end token."""

    ids: Tensor
    lengths: Tensor
    finished: Tensor
    fill_id: int


@torch.no_grad()
def greedy(
    model: Model,
    *,
    max_new_tokens: int,
    prompt: Tensor | None = None,
    target: str | None = None,
    output: str | None = None,
    masks: Mapping[str, Tensor] | None = None,
    lengths: Mapping[str, Tensor] | None = None,
    segments: Mapping[str, Tensor] | None = None,
    **inputs: Tensor,
) -> Generated:
    """Decode until every row has its end token, or `max_new_tokens` are made.

    `prompt` (B, n) is what the decoded sequences begin with, shorter ones padded on the left; without it, each begins with the
    `start_id` of the target node.
    `output` names the logits, the only ones over the target's vocabulary unless given. `masks`, `lengths` and `segments` are
    those of the other inputs, as in a call of the model. Rows that have ended leave the batch. The model is used in
    its present mode: call `model.eval()` first, or dropout acts.

    Raises InputError where start or output are not known, and for padding of the prompt that would shift positions.
    """
    if max_new_tokens < 1:
        raise InputError(Fault("TFK077", f"max_new_tokens is {max_new_tokens}", "ask for at least one"))
    target = _target(model, target, inputs)
    rule = model.plan.inputs[target]
    output = _output(model, target, output)
    known: Literal[True] | None = None
    if prompt is not None:
        check_ids(target, prompt, rule.vocab_size)
    elif rule.start_id is None:
        raise InputError(Fault("TFK077", f"`{target}` has no start_id", "write `start_id` at the node, or give a prompt"))
    rows_alone = None if inputs else 1 if prompt is None else prompt.shape[0]
    capacity = max_new_tokens + (1 if prompt is None else prompt.shape[1])
    state = model.start(target, batch=rows_alone, capacity=capacity, masks=masks, lengths=lengths, segments=segments, **inputs)
    batch, device = state.batch, next(model.parameters()).device
    if prompt is None:
        prompt, known = torch.full((batch, 1), rule.start_id or 0, device=device), True
    fill = rule.pad_id if rule.pad_id is not None else rule.end_id if rule.end_id is not None else 0
    made = torch.full((batch, max_new_tokens), fill, dtype=torch.int64, device=device)
    counts = torch.full((batch,), max_new_tokens, dtype=torch.int64, device=device)
    finished = torch.zeros(batch, dtype=torch.bool, device=device)
    rows = torch.arange(batch, device=device)
    logits = model.step(state, prompt, known)[output]
    _check_padding(target, state.visible, rule, prompt)
    for step in range(max_new_tokens):
        chosen = logits[:, -1].argmax(1)
        made[rows, step] = chosen
        if rule.end_id is not None:
            ended = chosen == rule.end_id
            if bool(ended.any()):
                finished[rows[ended]], counts[rows[ended]] = True, step + 1
                going = (~ended).nonzero().squeeze(1)
                if not len(going):
                    break
                rows, chosen = rows[going], chosen[going]
                state.reorder(going)
        if step + 1 < max_new_tokens:
            # A chosen token is real whatever its id, so padding need not be looked for.
            logits = model.step(state, chosen[:, None], True)[output]
    return Generated(made[:, : int(counts.max())], counts, finished, fill)


def _check_padding(target: str, visible: Tensor | None, rule: InputRule, prompt: Tensor) -> None:
    """Prompts of different lengths can be decoded together only where padding leaves every real token at its distance from
    the next, and at its position."""
    if visible is None:
        return
    shape = tuple(prompt.shape)
    if not bool(visible[:, -1].all()):
        row = int((~visible[:, -1]).nonzero()[0])
        message = (
            f"row {row} of the prompt for `{target}` {shape} ends in padding, so new tokens would not follow its last token"
        )
        raise InputError(Fault("TFK077", message, "put the padding on the left"))
    if rule.counts_padding and not bool(visible.all()):
        row = int((~visible.all(1)).nonzero()[0])
        message = f"row {row} of the prompt for `{target}` {shape} holds padding, and the position scheme counts it"
        raise InputError(
            Fault("TFK077", message, "write `count: visible` at the scheme, or decode prompts of one length together")
        )


def _target(model: Model, target: str | None, inputs: Mapping[str, Tensor]) -> str:
    names = ", ".join(model.plan.inputs)
    if target is not None:
        if not isinstance(target, str) or target not in model.plan.inputs:
            shown = f"`{target}`" if isinstance(target, str) else f"a {type(target).__name__}"
            message = f"the target is {shown}, which is no input of the model"
            raise InputError(Fault("TFK073", message, f"name one of {names}; what it begins with is the `prompt`"))
        return target
    left = [name for name in model.plan.inputs if name not in inputs]
    if len(left) != 1:
        message = f"inputs left to decode: {', '.join(left) or 'none'}"
        fix = f"give all but one of {names}; what a decoded sequence begins with is the `prompt`"
        raise InputError(Fault("TFK073", message, fix))
    return left[0]


def _output(model: Model, target: str, output: str | None) -> str:
    size = model.plan.inputs[target].vocab_size
    found = [name for name in model.plan.outputs if name in model.plan.followers[target] and model.plan.widths[name] == size]
    named = ", ".join(found) or "none"
    if output is not None:
        if output not in found:
            message = f"`{output}` is no output over the {size} ids of `{target}`"
            raise InputError(Fault("TFK077", message, f"such outputs: {named}"))
        return output
    if len(found) != 1:
        raise InputError(Fault("TFK077", f"outputs over the {size} ids of `{target}`: {named}", "name one with `output`"))
    return found[0]
