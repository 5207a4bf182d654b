"""Greedy decoding: at every step the most probable token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ..nn.model import Model
from .decode_loop import Emit, Generated, decode_loop
from .prefill import prefill
from .score_filters import Filter, filters_of, forced_ids
from .step_graphs import StepGraphs, one_search
from .top_k import fastest_greedy


@torch.no_grad()
@one_search()
def greedy(
    model: Model,
    *positional: Tensor,
    max_new_tokens: int | Tensor | None = None,
    prompt: Tensor | None = None,
    target: str | None = None,
    output: str | None = None,
    masks: Mapping[str, Tensor] | None = None,
    lengths: Mapping[str, Tensor] | None = None,
    segments: Mapping[str, Tensor] | None = None,
    scores: bool = False,
    attention: Iterable[str] = (),
    emit: Emit | None = None,
    graphs: StepGraphs | None = None,
    filters: Sequence[Filter] = (),
    prefixes: Sequence[Sequence[int]] | None = None,
    shortlists: Sequence[Sequence[int] | Tensor] | None = None,
    **inputs: Tensor,
) -> Generated:
    """Generate the most probable token at every step, until each row has its end token.

    Args:
        model: The model. Call `model.eval()` first, or dropout is active.
        *positional: (B, L) ids of the inputs, in the order of the spec without the decoded one. For a decoder-only model, the
            prompt.
        max_new_tokens: The limit of new tokens, or integers (B,), one per row; the length of the longest input + 50 by default.
        prompt: (B, N) ids at the start of the decoded sequences, padded on the left; the `start_id` of the target by default.
        target: The input to decode; by default the one that is not given.
        output: The output node with the logits; by default the only one over the target's vocabulary.
        masks: (B, L) bool of the other inputs, as in a call of the model.
        lengths: As `masks`.
        segments: As `masks`.
        scores: Whether to return the log-probability of every token.
        attention: Sites (`decoder.*.cross_attention`) whose weights are returned.
        emit: Is given the indices of rows (R,) and their new ids (R,) at every step.
        graphs: Captured steps of the model: `tfkit.generate.StepGraphs(model)`.
        filters: Change the scores of the next token, in this order: `tfkit.score_filter(...)`, or functions of the scores
            (R, V) and a `tfkit.plugin.Prefix`. Log-probabilities stay those of the model.
        prefixes: The ids that each row begins with, after the start token or the prompt; lists of different lengths, which may
            be empty. They count as new tokens, and no filter changes them.
        shortlists: The ids that each row may get; only their logits are computed, and all others are as if they were -inf. The
            end token, and the ids of a row's prefix, are always among them.
        **inputs: (B, L) ids of inputs by name.

    Returns:
        The tokens of all rows. Rows that have ended are not computed further.

    Raises:
        InputError: Target, output or start token are ambiguous; a limit is below 1; padding of the prompt would shift
            positions; a prefix holds the end token, or leaves no room.
    """
    filters_of(filters)
    start = prefill(
        model, positional, max_new_tokens, prompt, target, output, masks, lengths, segments, attention, inputs,
        shortlists, prefixes, None if graphs is None else graphs.first_pass,
    )  # fmt: skip
    filter_scores = filters_of(filters, forced_ids(prefixes, start))
    most_probable = fastest_greedy(model.beam_top_k)
    never = filter_scores.few_forbidden(start.rule.vocab_size)
    if never is None and filter_scores:
        return decode_loop(
            model, start, lambda logits, rows, step: most_probable(logits), scores, attention, emit, graphs, filter_scores
        )
    never = torch.empty(0, dtype=torch.int64, device="cpu") if never is None else never
    places = never.to(start.logits.device)
    places = places if start.columns is None else start.columns.places(places)

    def pick(logits: Tensor, rows: Tensor, step: int) -> Tensor:
        chosen = most_probable(logits)
        if len(places) and bool(torch.isin(chosen, places).any()):  # seldom, so the scores of all tokens are changed only then
            allowed = most_probable(logits.index_fill(1, places, -torch.inf))
            chosen = torch.where(logits.gather(1, chosen[:, None])[:, 0].isnan(), chosen, allowed)  # NaN is an error later
        return chosen

    return decode_loop(model, start, pick, scores, attention, emit, graphs, greedy_without=never)
