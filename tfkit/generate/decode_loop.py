"""The loop of greedy decoding and sampling: at every step a function selects the next token of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import Diagnostic, InputError
from ..nn.model import Model
from ..nn.prefix import Prefix
from .hypotheses import Hypothesis, stacked
from .prefill import GenerationState
from .score_filters import NO_FILTERS, ScoreFilters, refuse_dead_ends
from .step_graphs import StepGraphs

Emit = Callable[[Tensor, Tensor], None]
"""Is given the indices of rows (R,) and their new ids (R,) at every step."""
Pick = Callable[[Tensor, Tensor, int], Tensor]
"""Maps logits (R, V), the indices of their rows (R,) and the number of the step to the selected ids (R,)."""


@dataclass(frozen=True)
class Generated:
    """Generated tokens.

    Attributes:
        ids: (B, N), without the start token or the prompt, `fill_id` after a row's end.
        lengths: (B,) tokens of each row, its end token included.
        finished: (B,) whether the row reached its end token.
        fill_id: The id after a row's end.
        log_probabilities: (B, N) of the tokens, 0 after a row's end; None unless requested.
        attention: (B, H, N, K) by requested site.
    """

    ids: Tensor
    lengths: Tensor
    finished: Tensor
    fill_id: int
    log_probabilities: Tensor | None = None
    attention: dict[str, Tensor] = field(default_factory=dict)

    def hypotheses(self) -> list[list[Hypothesis]]:
        """The rows as hypotheses.

        Returns:
            One hypothesis per row, in a list.

        Raises:
            InputError: there are no `log_probabilities`.
        """
        if self.log_probabilities is None:
            raise InputError(
                Diagnostic("TFK078", "these tokens were generated without log-probabilities", "greedy(scores=True)")
            )
        hypotheses = []
        totals = self.log_probabilities.sum(1).tolist()
        for row, (length, ended) in enumerate(zip(self.lengths.tolist(), self.finished.tolist(), strict=True)):
            ids, log_probs = self.ids[row, :length], self.log_probabilities[row, :length]
            weights = {site: tensor[row, :, :length] for site, tensor in self.attention.items()}
            hypotheses.append([Hypothesis(ids, totals[row], totals[row], log_probs, ended, weights)])
        return hypotheses


def decode_loop(
    model: Model, start: GenerationState, pick: Pick, scores: bool, sites: Iterable[str], emit: Emit | None = None,
    graphs: StepGraphs | None = None, filters: ScoreFilters = NO_FILTERS, greedy_without: Tensor | None = None,
) -> Generated:  # fmt: skip
    """Generate until all rows have ended. Rows that have ended are removed from the batch; a captured step computes all rows.

    Args:
        start: The state after the prefill; its decoding state changes in place.
        pick: Selects the tokens of a step.
        scores: Whether to return log-probabilities.
        sites: Sites whose attention weights are returned.
        emit: Is given the tokens of every step.
        graphs: Captured steps of the model, or None.
        filters: Change the logits of which `pick` selects; log-probabilities stay those of the model.
        greedy_without: If `pick` selects the most probable token except for these ids (F,), they: recorded steps may select it
            themselves. Otherwise None.

    Returns:
        The tokens of all rows.

    Raises:
        InputError: Logits are NaN or infinite, or the steps cannot be captured.
    """
    following = None if graphs is None else graphs.begin(start, sites, None if emit is not None else greedy_without)
    columns, every_id = start.columns, start.columns is None or bool(filters)
    decoding, logits, rule, weights = start.decoding, start.logits, start.rule, start.weights
    batch, device, max_tokens = decoding.batch, logits.device, start.max_tokens
    wide = torch.promote_types(logits.dtype, torch.float32)
    fill = rule.pad_id if rule.pad_id is not None else rule.end_id if rule.end_id is not None else 0
    ids = torch.full((batch, max_tokens), fill, dtype=torch.int64, device=device)
    selected = torch.zeros(batch, max_tokens, dtype=wide, device=device)  # logits of the tokens, or their log-probabilities
    attention: dict[str, list[Tensor]] = {site: [] for site in weights}
    counts = start.limits.clone()
    finished = torch.zeros(batch, dtype=torch.bool, device=device)
    rows = torch.arange(batch, device=device)
    fed = torch.zeros_like(rows)
    for step in range(max_tokens):
        if columns is not None:
            logits = columns.read(logits, rows, whole=every_id)
        scores_of_tokens = logits
        if filters:
            so_far = torch.cat([start.prompt[rows], ids[rows, :step]], 1)
            prefix = Prefix(so_far, step, start.limits[rows] - step, rule.end_id)
            scores_of_tokens = filters(logits.to(wide, copy=True), prefix, rows)
            refuse_dead_ends(scores_of_tokens.amax(1) == -torch.inf, rows, step)
        at = pick(scores_of_tokens, rows, step)
        chosen = at if columns is None or every_id else columns.ids[at]
        ids[rows, step] = chosen
        if emit is not None:
            emit(rows, chosen)
        if scores:
            logits = logits.to(wide).contiguous()
            torch.log_softmax(logits, 1, out=logits)
        selected[rows, step] = logits.gather(1, at[:, None])[:, 0].to(wide)
        for site, tensor in weights.items():
            attention[site].append(tensor.new_zeros(batch, *tensor[0, :, -1].shape).index_copy_(0, rows, tensor[:, :, -1]))
        ended = None if rule.end_id is None else chosen == rule.end_id
        if step + 1 == max_tokens:
            if ended is not None:
                finished[rows] = ended
            break
        leaving = ended
        if start.per_row:
            full = start.limits[rows] == step + 1
            leaving = full if ended is None else ended | full
        if leaving is not None and bool(leaving.any()):
            if ended is not None:
                finished[rows[ended]], counts[rows[ended]] = True, step + 1
            remaining = (~leaving).nonzero().squeeze(1)
            if not len(remaining):
                break
            rows, chosen = rows[remaining], chosen[remaining]
            if following is None:
                decoding.reorder(remaining)
        if following is not None and graphs is not None and greedy_without is not None and emit is None and not step:
            without_python = graphs.greedy_from(start)
            if without_python is not None:
                without_python(ids, selected, start.limits, counts, finished, rule.end_id, greedy_without)
                break
        if following is not None:
            fed[rows] = chosen  # a row that has ended is computed on with its last token, and not read
            logits = following(fed)
            logits = logits if len(rows) == batch else logits[rows]
            continue
        # `True`: a selected token is never padding, whatever its id, so the model need not check for it.
        outputs = model.step(decoding, chosen[:, None], True, sites)
        logits, weights = outputs[start.output][:, -1], outputs.get("weights", {})
    # The largest of logits is finite only if none is NaN or +inf, and some are not -inf.
    if not bool((finite := selected.isfinite()).all()):
        message = f"the logits of row {int((~finite).any(1).nonzero()[0])} are NaN or infinite"
        raise InputError(
            Diagnostic("TFK077", message, "the weights of the model, or its inputs, hold NaN, infinities or very large numbers")
        )
    longest = int(counts.max())
    return Generated(
        ids[:, :longest],
        counts,
        finished,
        fill,
        selected[:, :longest] if scores else None,
        {site: stacked(steps) for site, steps in attention.items()},
    )
