"""The start of every search: find the input to decode and its logits, encode the other inputs, and prefill the prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import Diagnostic, InputError
from ..errors.arguments import check_whole, in_words
from ..nn.model import Model
from ..nn.runtime.decoding_state import DecodingState
from ..nn.runtime.inputs import check_ids
from ..slots.node import ImageRule, InputRule
from .columns import Columns, columns_of

MOST_TOKENS = 2**20
"""New tokens of a row."""
MOST_ROWS = 2**16
"""Beams, hypotheses and samples of a row: an error comes before the memory is full."""


@dataclass(frozen=True)
class GenerationState:
    """A search after its prefill.

    Attributes:
        output: The name of the logits.
        rule: The special ids of the target.
        decoding: The keys and values, and the encoded inputs.
        prompt: (B, N) the ids before the first new token, -1 for padding.
        logits: (B, V) of the first new token.
        limits: (B,) int64, the largest number of new tokens of each row.
        max_tokens: The largest of these.
        per_row: Whether the caller gave a limit for each row.
        weights: (B, H, Q, K) attention weights of the prefill, by site.
        columns: The ids of the columns of logits, C instead of V, in a search with shortlists; otherwise None.
    """

    output: str
    rule: InputRule
    decoding: DecodingState
    prompt: Tensor
    logits: Tensor
    limits: Tensor
    max_tokens: int
    per_row: bool
    weights: Mapping[str, Tensor]
    columns: Columns | None = None


FirstPass = Callable[..., tuple[DecodingState, Tensor] | None]
"""Maps target, output, inputs, masks, lengths, capacity and start token to the state after this token and its logits."""
EXTRA = 50
"""Tokens beyond the length of the source that a search may generate by default, as in "Attention Is All You Need"."""


def prefill(
    model: Model,
    positional: tuple[Tensor, ...],
    max_new_tokens: int | Tensor | None,
    prompt: Tensor | None,
    target: str | None,
    output: str | None,
    masks: Mapping[str, Tensor] | None,
    lengths: Mapping[str, Tensor] | None,
    segments: Mapping[str, Tensor] | None,
    attention: Iterable[str],
    inputs: Mapping[str, Tensor],
    shortlists: Sequence[Any] | None = None,
    prefixes: Any = None,
    first_pass: FirstPass | None = None,
) -> GenerationState:
    """Run the nodes that do not depend on the target, then the start token or the prompt of the target.

    Args:
        positional: Inputs in the order of the spec, without the target; for a model with one input, its prompt.
        max_new_tokens: One limit, or integers (B,); the length of the longest input + `EXTRA` by default.
        prompt: As in `greedy`, like all further arguments.
        first_pass: A recorded pass over sources and start token, which returns None where there is none.

    Returns:
        The state before the first new token.

    Raises:
        InputError: Target, output or start token are ambiguous; a limit is below 1; padding of the prompt would shift
            positions.
    """
    attention = tuple(attention)
    target, prompt, inputs = _by_name(model, positional, target, prompt, inputs)
    if max_new_tokens is None:
        max_new_tokens = _default_limit(model, target, prompt, inputs)
    max_tokens = _max_tokens(max_new_tokens)
    rule = model.plan.token_rule(target)
    output = _output(model, target, output)
    known: Literal[True] | None = None
    if prompt is not None:
        check_ids(target, prompt, rule.vocab_size)
    elif rule.start_id is None:
        raise InputError(Diagnostic("TFK077", f"`{target}` has no start_id", "write `start_id` at the node, or give a prompt"))
    batch = None if inputs else 1 if prompt is None else prompt.shape[0]
    capacity = max_tokens + (1 if prompt is None else prompt.shape[1])
    recorded = None
    if first_pass is not None and prompt is None and segments is None and not attention and (
        shortlists is None or getattr(model.nodes[output], "low_precision", None) is None  # then all logits are exact
    ):  # fmt: skip
        recorded = first_pass(target, output, inputs, masks, lengths, capacity, rule.start_id or 0)
    decoding = recorded[0] if recorded is not None else model.start(
        target, batch=batch, capacity=capacity, masks=masks, lengths=lengths, segments=segments, **inputs
    )  # fmt: skip
    batch, device = decoding.batch, model.device
    columns = None if shortlists is None else columns_of(shortlists, prefixes, rule, batch, device)
    if columns is not None:
        model.restrict(decoding, output, columns.ids)
    if prompt is None:
        prompt, known = torch.full((batch, 1), rule.start_id or 0, device=device), True
    weights: dict[str, Tensor] = {}
    if recorded is not None:
        logits = recorded[1] if columns is None else recorded[1].index_select(1, columns.ids)
    else:
        outputs = model.step(decoding, prompt, known, attention)
        logits, weights = outputs[output][:, -1], outputs.get("weights", {})
    _check_padding(target, decoding.visible, rule, prompt)
    _check_sites(model, attention, weights)
    limits = _limits(max_new_tokens, batch, device)
    per_row = isinstance(max_new_tokens, Tensor)
    before = prompt if decoding.visible is None else torch.where(decoding.visible, prompt, -1)
    return GenerationState(output, rule, decoding, before, logits, limits, max_tokens, per_row, weights, columns)


def _by_name(
    model: Model, positional: tuple[Tensor, ...], target: str | None, prompt: Tensor | None, inputs: Mapping[str, Tensor]
) -> tuple[str, Tensor | None, Mapping[str, Tensor]]:
    """The target, the prompt, and all inputs by name."""
    names = list(model.plan.inputs)
    if not positional:
        return _target(model, target, inputs), prompt, inputs
    if len(names) == 1 and not inputs and prompt is None and len(positional) == 1:
        return _target(model, target, {}), positional[0], {}
    if target is None:
        stepwise = [name for name in names if name not in inputs and name not in model.plan.undecodable]
        target = stepwise[0] if len(stepwise) == 1 else None
    else:
        target = _target(model, target, inputs)
    missing = [name for name in names if name not in inputs and name != target]
    if target is None or len(missing) != len(positional):
        message = f"positional inputs: {len(positional)}; inputs not given by name: {', '.join(missing) or 'none'}"
        fix = f"give inputs by name: {', '.join(names)}; the start of the decoded sequence is the `prompt`"
        raise InputError(Diagnostic("TFK073", message, fix))
    return target, prompt, {**inputs, **dict(zip(missing, positional, strict=True))}


def _default_limit(model: Model, target: str, prompt: Tensor | None, inputs: Mapping[str, Tensor]) -> int:
    """The default limit of new tokens, at most the positions of the target."""
    sequences = [tensor for name, tensor in inputs.items() if not isinstance(model.plan.inputs.get(name), ImageRule)]
    lengths = [sequence.shape[1] for sequence in (*sequences, prompt) if isinstance(sequence, Tensor) and sequence.dim() > 1]
    limit, positions = max(lengths, default=0) + EXTRA, model.plan.max_input_lengths.get(target)
    first = prompt.shape[1] if isinstance(prompt, Tensor) and prompt.dim() > 1 else 1
    return limit if positions is None else max(1, min(limit, positions + 1 - first))  # the last token needs no position


def _max_tokens(max_new_tokens: Any) -> int:
    if isinstance(max_new_tokens, Tensor):
        if max_new_tokens.dtype not in (torch.int64, torch.int32) or max_new_tokens.dim() != 1 or not len(max_new_tokens):
            message = f"max_new_tokens is {max_new_tokens.dtype} {tuple(max_new_tokens.shape)}"
            raise InputError(Diagnostic("TFK077", message, "give a whole number, or integers (B,), one per row"))
        smallest, largest = (int(bound) for bound in max_new_tokens.aminmax())
    elif isinstance(max_new_tokens, int) and not isinstance(max_new_tokens, bool):
        smallest = largest = max_new_tokens
    else:
        message = f"max_new_tokens is {in_words(max_new_tokens)}"
        raise InputError(Diagnostic("TFK077", message, "give a whole number, or integers (B,), one per row"))
    for bound in (smallest, largest):
        check_whole("max_new_tokens", bound, 1, MOST_TOKENS, "TFK077")
    return largest


def _limits(max_new_tokens: int | Tensor, batch: int, device: torch.device) -> Tensor:
    if not isinstance(max_new_tokens, Tensor):
        return torch.full((batch,), max_new_tokens, dtype=torch.int64, device=device)
    if len(max_new_tokens) != batch:
        message = f"max_new_tokens has {len(max_new_tokens)} limits, the call has {batch} rows"
        raise InputError(Diagnostic("TFK070", message, "give one limit per row, or one whole number"))
    return max_new_tokens.to(device, torch.int64)


def _check_sites(model: Model, attention: Iterable[str], weights: Mapping[str, Tensor]) -> None:
    """Raises InputError for a site that runs only once, before the first token: it has no weights per token."""
    missing = sorted(model.backends.matching(attention) - weights.keys())
    if missing:
        message = f"`{missing[0]}` does not run while tokens are generated, so no token has attention weights there"
        raise InputError(Diagnostic("TFK076", message, "ask for sites of the decoder, `decoder.*.cross_attention`"))


def _check_padding(target: str, visible: Tensor | None, rule: InputRule, prompt: Tensor) -> None:
    """Raises InputError for padding at the end of a prompt, and for padding that the position scheme counts. Both would change
    the positions of real tokens."""
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
            label = f"`{target}`" if isinstance(target, str) else f"a {type(target).__name__}"
            message = f"the target is {label}, which is no input of the model"
            raise InputError(Diagnostic("TFK073", message, f"name one of {names}; the ids it starts with are the `prompt`"))
        return target
    missing = [name for name in model.plan.inputs if name not in inputs]
    if len(missing) != 1:
        message = f"inputs left to decode: {', '.join(missing) or 'none'}"
        fix = f"give all but one of {names}; the start of the decoded sequence is the `prompt`"
        raise InputError(Diagnostic("TFK073", message, fix))
    return missing[0]


def _output(model: Model, target: str, output: str | None) -> str:
    size = model.plan.token_rule(target).vocab_size
    candidates = [
        name for name in model.plan.outputs if name in model.plan.followers[target] and model.plan.widths.get(name) == size
    ]
    named = ", ".join(candidates) or "none"
    if output is not None:
        if output not in candidates:
            message = f"`{output}` is no output over the {size} ids of `{target}`"
            raise InputError(Diagnostic("TFK077", message, f"such outputs: {named}"))
        return output
    if len(candidates) != 1:
        raise InputError(Diagnostic("TFK077", f"outputs over the {size} ids of `{target}`: {named}", "name one with `output`"))
    return candidates[0]
