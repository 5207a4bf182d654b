"""Greedy decoding: at every step the most probable token, on the incremental state (keys and values are computed once)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import Fault, InputError
from ..nn.model import Model
from .begin import begin
from .hypothesis import Hypothesis


@dataclass(frozen=True)
class Generated:
    """`ids` (B, N) without the start or the prompt, filled up with `fill_id` after a row's end; `lengths` (B,) counts the
    tokens of each row, its end token included; `finished` (B,) says which rows reached their end token. `log_probabilities`
    (B, N) of the tokens, 0 after a row's end, where they were asked for."""

    ids: Tensor
    lengths: Tensor
    finished: Tensor
    fill_id: int
    log_probabilities: Tensor | None = None

    def hypotheses(self) -> list[list[Hypothesis]]:
        """One hypothesis per row, as the other searches give them. Raises InputError without `log_probabilities`."""
        if self.log_probabilities is None:
            raise InputError(Fault("TFK078", "these tokens were made without their log-probabilities", "greedy(scores=True)"))
        found = []
        totals = self.log_probabilities.sum(1).tolist()
        for row, (length, ended) in enumerate(zip(self.lengths.tolist(), self.finished.tolist(), strict=True)):
            ids, each = self.ids[row, :length], self.log_probabilities[row, :length]
            found.append([Hypothesis(ids, totals[row], totals[row], each, ended)])
        return found


@torch.no_grad()
def greedy(
    model: Model,
    *,
    max_new_tokens: int | Tensor,
    prompt: Tensor | None = None,
    target: str | None = None,
    output: str | None = None,
    masks: Mapping[str, Tensor] | None = None,
    lengths: Mapping[str, Tensor] | None = None,
    segments: Mapping[str, Tensor] | None = None,
    scores: bool = False,
    **inputs: Tensor,
) -> Generated:
    """Decode until every row has its end token, or `max_new_tokens` are made: one limit, or integers (B,), one per row.

    `prompt` (B, n) is what the decoded sequences begin with, shorter ones padded on the left; without it, each begins with the
    `start_id` of the target node.
    `output` names the logits, the only ones over the target's vocabulary unless given. `masks`, `lengths` and `segments` are
    those of the other inputs, as in a call of the model. `scores` asks for the log-probability of every token. Rows that have
    ended leave the batch. The model is used in its present mode: call `model.eval()` first, or dropout acts.

    Raises InputError where start or output are not known, and for padding of the prompt that would shift positions.
    """
    begun = begin(model, max_new_tokens, prompt, target, output, masks, lengths, segments, (), inputs)
    state, logits, limits, rule = begun.state, begun.logits, begun.limits, begun.rule
    batch, device = state.batch, logits.device
    fill = rule.pad_id if rule.pad_id is not None else rule.end_id if rule.end_id is not None else 0
    made = torch.full((batch, begun.most), fill, dtype=torch.int64, device=device)
    wide = torch.promote_types(logits.dtype, torch.float32)
    told = torch.zeros(batch, begun.most, dtype=wide, device=device)
    counts = limits.clone()
    finished = torch.zeros(batch, dtype=torch.bool, device=device)
    rows = torch.arange(batch, device=device)
    ends_alike = not isinstance(max_new_tokens, Tensor)
    for step in range(begun.most):
        chosen = logits.argmax(1)
        made[rows, step] = chosen
        if scores:
            told[rows, step] = logits.gather(1, chosen[:, None])[:, 0] - logits.to(wide).logsumexp(1)
        if step + 1 == begun.most:
            if rule.end_id is not None:
                finished[rows] = chosen == rule.end_id
            break
        leaving = None if ends_alike else limits[rows] == step + 1
        if rule.end_id is not None:
            ended = chosen == rule.end_id
            leaving = ended if leaving is None else leaving | ended
        if leaving is not None and bool(leaving.any()):
            if rule.end_id is not None:
                finished[rows[ended]], counts[rows[ended]] = True, step + 1
            going = (~leaving).nonzero().squeeze(1)
            if not len(going):
                break
            rows, chosen = rows[going], chosen[going]
            state.reorder(going)
        # A chosen token is real whatever its id, so padding need not be looked for.
        logits = model.step(state, chosen[:, None], True)[begun.output][:, -1]
    longest = int(counts.max())
    return Generated(made[:, :longest], counts, finished, fill, told[:, :longest] if scores else None)
