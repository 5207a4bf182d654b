"""How every search begins: which input is decoded, which output holds its logits, and the step over start token or prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import Diagnostic, InputError
from ..nn.model import Model
from ..nn.runtime.decoding_state import DecodingState
from ..nn.runtime.input_checks import check_ids
from ..slots.node import InputRule


@dataclass(frozen=True)
class GenerationState:
    """A search after its first step: `logits` (B, V) are those of the first new token, `limits` (B,) how many tokens each row
    may have, `most` the largest of them; `weights` (B, H, Q, K) those of the step, by site."""

    output: str
    rule: InputRule
    decoding: DecodingState
    logits: Tensor
    limits: Tensor
    most: int
    weights: Mapping[str, Tensor]


EXTRA = 50
"""Unless told otherwise, a search makes as many tokens as its source has, and so many more, as "Attention Is All You Need"."""


def prefill(
    model: Model,
    given: tuple[Tensor, ...],
    max_new_tokens: int | Tensor | None,
    prompt: Tensor | None,
    target: str | None,
    output: str | None,
    masks: Mapping[str, Tensor] | None,
    lengths: Mapping[str, Tensor] | None,
    segments: Mapping[str, Tensor] | None,
    attention: Iterable[str],
    inputs: Mapping[str, Tensor],
) -> GenerationState:
    """Run everything that does not follow the target once, and decode its start token or its prompt. `given` are inputs by
    their place in the spec, the target left out; of a model with one input, its prompt.

    Raises InputError where target, output or start are not known, for limits below 1, and for padding of the prompt that would
    shift positions.
    """
    target, prompt, inputs = _by_name(model, given, target, prompt, inputs)
    if max_new_tokens is None:
        max_new_tokens = _usual(model, target, prompt, inputs)
    most = _most(max_new_tokens)
    rule = model.plan.inputs[target]
    output = _output(model, target, output)
    known: Literal[True] | None = None
    if prompt is not None:
        check_ids(target, prompt, rule.vocab_size)
    elif rule.start_id is None:
        raise InputError(Diagnostic("TFK077", f"`{target}` has no start_id", "write `start_id` at the node, or give a prompt"))
    rows_alone = None if inputs else 1 if prompt is None else prompt.shape[0]
    capacity = most + (1 if prompt is None else prompt.shape[1])
    state = model.start(target, batch=rows_alone, capacity=capacity, masks=masks, lengths=lengths, segments=segments, **inputs)
    batch, device = state.batch, next(model.parameters()).device
    if prompt is None:
        prompt, known = torch.full((batch, 1), rule.start_id or 0, device=device), True
    outputs = model.step(state, prompt, known, attention)
    _check_padding(target, state.visible, rule, prompt)
    weights: dict[str, Tensor] = outputs.get("weights", {})
    _check_sites(model, attention, weights)
    return GenerationState(output, rule, state, outputs[output][:, -1], _limits(max_new_tokens, batch, device), most, weights)


def _by_name(
    model: Model, given: tuple[Tensor, ...], target: str | None, prompt: Tensor | None, inputs: Mapping[str, Tensor]
) -> tuple[str, Tensor | None, Mapping[str, Tensor]]:
    """The target, the prompt and the inputs of a search, with those that were given by their place."""
    names = list(model.plan.inputs)
    if not given:
        return _target(model, target, inputs), prompt, inputs
    if len(names) == 1 and not inputs and prompt is None and len(given) == 1:
        return _target(model, target, {}), given[0], {}
    if target is None:
        stepwise = [name for name in names if name not in inputs and name not in model.plan.undecodable]
        target = stepwise[0] if len(stepwise) == 1 else None
    else:
        target = _target(model, target, inputs)
    wanted = [name for name in names if name not in inputs and name != target]
    if target is None or len(wanted) != len(given):
        left = ", ".join(wanted) or "none"
        message = f"inputs given by their place: {len(given)}; those that are left for them: {left}"
        fix = f"give inputs by name: {', '.join(names)}; what a decoded sequence begins with is the `prompt`"
        raise InputError(Diagnostic("TFK073", message, fix))
    return target, prompt, {**inputs, **dict(zip(wanted, given, strict=True))}


def _usual(model: Model, target: str, prompt: Tensor | None, inputs: Mapping[str, Tensor]) -> int:
    """How many new tokens a search makes unless told otherwise: at most as many as the positions of the target allow."""
    lengths = [given.shape[1] for given in (*inputs.values(), prompt) if isinstance(given, Tensor) and given.dim() > 1]
    wanted, most = max(lengths, default=0) + EXTRA, model.plan.max_input_lengths.get(target)
    first = prompt.shape[1] if isinstance(prompt, Tensor) and prompt.dim() > 1 else 1
    return wanted if most is None else max(1, min(wanted, most + 1 - first))  # the last token is never read


def _most(max_new_tokens: Any) -> int:
    if isinstance(max_new_tokens, Tensor):
        if max_new_tokens.dtype not in (torch.int64, torch.int32) or max_new_tokens.dim() != 1 or not len(max_new_tokens):
            message = f"max_new_tokens is {max_new_tokens.dtype} {tuple(max_new_tokens.shape)}"
            raise InputError(Diagnostic("TFK077", message, "give a whole number, or integers (B,), one per row"))
        least, most = (int(bound) for bound in max_new_tokens.aminmax())
    elif isinstance(max_new_tokens, int) and not isinstance(max_new_tokens, bool):
        least = most = max_new_tokens
    else:
        message = f"max_new_tokens is {max_new_tokens!r}"
        raise InputError(Diagnostic("TFK077", message, "give a whole number, or integers (B,), one per row"))
    if least < 1:
        raise InputError(Diagnostic("TFK077", f"max_new_tokens is {least}", "ask for at least one"))
    return most


def _limits(max_new_tokens: int | Tensor, batch: int, device: torch.device) -> Tensor:
    if not isinstance(max_new_tokens, Tensor):
        return torch.full((batch,), max_new_tokens, dtype=torch.int64, device=device)
    if len(max_new_tokens) != batch:
        message = f"max_new_tokens has {len(max_new_tokens)} limits, the call has {batch} rows"
        raise InputError(Diagnostic("TFK070", message, "give one limit per row, or one whole number"))
    return max_new_tokens.to(device, torch.int64)


def _check_sites(model: Model, attention: Iterable[str], found: Mapping[str, Tensor]) -> None:
    """A pattern that matches only sites which run once, before the first token, has no weights per token."""
    silent = sorted(model.backends.matching(attention) - found.keys())
    if silent:
        message = f"`{silent[0]}` does not run while tokens are made, so no token has attention weights there"
        raise InputError(Diagnostic("TFK076", message, "ask for sites of the decoder, `decoder.*.cross_attention`"))


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
        raise InputError(Diagnostic("TFK077", message, "put the padding on the left"))
    if rule.counts_padding and not bool(visible.all()):
        row = int((~visible.all(1)).nonzero()[0])
        message = f"row {row} of the prompt for `{target}` {shape} holds padding, and the position scheme counts it"
        raise InputError(
            Diagnostic("TFK077", message, "write `count: visible` at the scheme, or decode prompts of one length together")
        )


def _target(model: Model, target: str | None, inputs: Mapping[str, Tensor]) -> str:
    names = ", ".join(model.plan.inputs)
    if target is not None:
        if not isinstance(target, str) or target not in model.plan.inputs:
            shown = f"`{target}`" if isinstance(target, str) else f"a {type(target).__name__}"
            message = f"the target is {shown}, which is no input of the model"
            raise InputError(Diagnostic("TFK073", message, f"name one of {names}; what it begins with is the `prompt`"))
        return target
    left = [name for name in model.plan.inputs if name not in inputs]
    if len(left) != 1:
        message = f"inputs left to decode: {', '.join(left) or 'none'}"
        fix = f"give all but one of {names}; what a decoded sequence begins with is the `prompt`"
        raise InputError(Diagnostic("TFK073", message, fix))
    return left[0]


def _output(model: Model, target: str, output: str | None) -> str:
    size = model.plan.inputs[target].vocab_size
    found = [name for name in model.plan.outputs if name in model.plan.followers[target] and model.plan.widths[name] == size]
    named = ", ".join(found) or "none"
    if output is not None:
        if output not in found:
            message = f"`{output}` is no output over the {size} ids of `{target}`"
            raise InputError(Diagnostic("TFK077", message, f"such outputs: {named}"))
        return output
    if len(found) != 1:
        raise InputError(Diagnostic("TFK077", f"outputs over the {size} ids of `{target}`: {named}", "name one with `output`"))
    return found[0]
