"""Rolling out one sequence per row: at every step a rule picks the next token of each row, until all have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import Diagnostic, InputError
from ..nn.model import Model
from .hypothesis import Hypothesis
from .prefill import GenerationState

Pick = Callable[[Tensor, Tensor, int], Tensor]
"""logits (R, V), the numbers of their rows (R,), the number of the step -> the chosen ids (R,)."""


@dataclass(frozen=True)
class Generated:
    """`ids` (B, N) without the start or the prompt, filled up with `fill_id` after a row's end; `lengths` (B,) counts the
    tokens of each row, its end token included; `finished` (B,) says which rows reached their end token. Where they were asked
    for: `log_probabilities` (B, N) of the tokens, 0 after a row's end, and by site the `attention` (B, H, N, K)."""

    ids: Tensor
    lengths: Tensor
    finished: Tensor
    fill_id: int
    log_probabilities: Tensor | None = None
    attention: dict[str, Tensor] = field(default_factory=dict)

    def hypotheses(self) -> list[list[Hypothesis]]:
        """One hypothesis per row, as the other searches give them. Raises InputError without `log_probabilities`."""
        if self.log_probabilities is None:
            raise InputError(
                Diagnostic("TFK078", "these tokens were made without their log-probabilities", "greedy(scores=True)")
            )
        found = []
        totals = self.log_probabilities.sum(1).tolist()
        for row, (length, ended) in enumerate(zip(self.lengths.tolist(), self.finished.tolist(), strict=True)):
            ids, each = self.ids[row, :length], self.log_probabilities[row, :length]
            weights = {site: tensor[row, :, :length] for site, tensor in self.attention.items()}
            found.append([Hypothesis(ids, totals[row], totals[row], each, ended, weights)])
        return found


def decode_loop(
    model: Model, start: GenerationState, pick: Pick, limits: Tensor | None, scores: bool, sites: Iterable[str]
) -> Generated:
    """`limits` (B,) where rows have limits of their own, None where all have `start.most`. Rows that have ended leave."""
    state, logits, rule, weights = start.decoding, start.logits, start.rule, start.weights
    batch, device = state.batch, logits.device
    wide = torch.promote_types(logits.dtype, torch.float32)
    fill = rule.pad_id if rule.pad_id is not None else rule.end_id if rule.end_id is not None else 0
    made = torch.full((batch, start.most), fill, dtype=torch.int64, device=device)
    told = torch.zeros(batch, start.most, dtype=wide, device=device)
    looked: dict[str, list[Tensor]] = {site: [] for site in weights}
    counts = start.limits.clone()
    finished = torch.zeros(batch, dtype=torch.bool, device=device)
    rows = torch.arange(batch, device=device)
    for step in range(start.most):
        chosen = pick(logits, rows, step)
        made[rows, step] = chosen
        if scores:
            logits = logits.to(wide).contiguous()
            told[rows, step] = torch.log_softmax(logits, 1, out=logits).gather(1, chosen[:, None])[:, 0]
        for site, tensor in weights.items():
            looked[site].append(tensor.new_zeros(batch, *tensor[0, :, -1].shape).index_copy_(0, rows, tensor[:, :, -1]))
        ended = None if rule.end_id is None else chosen == rule.end_id
        if step + 1 == start.most:
            if ended is not None:
                finished[rows] = ended
            break
        leaving = ended
        if limits is not None:
            full = limits[rows] == step + 1
            leaving = full if ended is None else ended | full
        if leaving is not None and bool(leaving.any()):
            if ended is not None:
                finished[rows[ended]], counts[rows[ended]] = True, step + 1
            going = (~leaving).nonzero().squeeze(1)
            if not len(going):
                break
            rows, chosen = rows[going], chosen[going]
            state.reorder(going)
        # A chosen token is real whatever its id, so padding need not be looked for.
        outputs = model.step(state, chosen[:, None], True, sites)
        logits, weights = outputs[start.output][:, -1], outputs.get("weights", {})
    if scores and bool(told.isnan().any()):
        message = f"the logits of row {int(told.isnan().any(1).nonzero()[0])} are not numbers"
        raise InputError(Diagnostic("TFK077", message, "the weights of the model, or its inputs, hold NaN or infinities"))
    longest = int(counts.max())
    attention = {site: _stacked(steps) for site, steps in looked.items()}
    return Generated(made[:, :longest], counts, finished, fill, told[:, :longest] if scores else None, attention)


def _stacked(steps: list[Tensor]) -> Tensor:
    """The weights (B, H, K) of all steps as (B, H, N, K), 0 at the keys that were not there yet."""
    keys = steps[-1].shape[2]
    return torch.stack([functional.pad(step, (0, keys - step.shape[2])) for step in steps], 2)
