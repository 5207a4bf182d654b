"""Greedy decoding: at every step the most probable token, on the incremental state (keys and values are computed once)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..nn.model import Model
from .decode_loop import Generated, decode_loop
from .prefill import prefill
from .top_k import most_probable


@torch.no_grad()
def greedy(
    model: Model,
    *given: Tensor,
    max_new_tokens: int | Tensor | None = None,
    prompt: Tensor | None = None,
    target: str | None = None,
    output: str | None = None,
    masks: Mapping[str, Tensor] | None = None,
    lengths: Mapping[str, Tensor] | None = None,
    segments: Mapping[str, Tensor] | None = None,
    scores: bool = False,
    attention: Iterable[str] = (),
    **inputs: Tensor,
) -> Generated:
    """`greedy(model, source)`: decode until every row has its end token, or `max_new_tokens` are made: one limit, or integers
    (B,), one per row; as many as the source, or the prompt, has and 50 more unless given.

    Inputs are given by name, or in the order of the spec without the one that is decoded; of a decoder-only model,
    `greedy(model, ids)`, ids are the prompt.
    `prompt` (B, n) is what the decoded sequences begin with, shorter ones padded on the left; without it, each begins with the
    `start_id` of the target node.
    `output` names the logits, the only ones over the target's vocabulary unless given. `masks`, `lengths` and `segments` are
    those of the other inputs, as in a call of the model. `scores` asks for the log-probability of every token, `attention` for
    the weights at the sites that it names. Rows that have ended leave the batch. The model is used in its present mode: call
    `model.eval()` first, or dropout acts.

    Raises InputError where start or output are not known, and for padding of the prompt that would shift positions.
    """
    state = prefill(model, given, max_new_tokens, prompt, target, output, masks, lengths, segments, attention, inputs)
    limits = state.limits if isinstance(max_new_tokens, Tensor) else None
    return decode_loop(model, state, lambda logits, rows, step: most_probable(logits), limits, scores, attention)
