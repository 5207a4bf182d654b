"""Beam search: of all sequences Y, look for those of the highest score log P(Y) / penalty(|Y|).

Every step extends the `beams` live hypotheses of a sentence by every token and looks at the best of these candidates, by
their log-probability, which is fair because all are of one length. A candidate among the best `beams` that ends in the end
token is finished, and kept if its score is among the `n_best`; the best `beams` that have not ended live on. What lives at the
limit of tokens is kept, unfinished, by the same rule.

A sentence is done when no live hypothesis can still beat the worst kept one. A live log-probability L can only fall, and for
an alpha from 0 up the penalty is largest at the limit of tokens, so no continuation scores more than L / penalty(limit): the
search stops there and not earlier, whatever alpha (stopping at the first `beams` finished ones loses the best for alpha > 0).

Ties go to the hypothesis that ended earlier, then to the lower beam, then to the lower id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import Diagnostic, InputError
from ..nn.model import Model
from .finished import BeamHistory, FinishedHypotheses
from .hypothesis import Hypothesis
from .penalty import GnmtLengthPenalty, LengthPenalty, PowerLengthPenalty
from .prefill import GenerationState, prefill
from .top_k import best_tokens

GNMT = GnmtLengthPenalty()


@torch.no_grad()
def beam_search(
    model: Model,
    *given: Tensor,
    beams: int = 5,
    max_new_tokens: int | Tensor | None = None,
    length_penalty: LengthPenalty = GNMT,
    n_best: int = 1,
    prompt: Tensor | None = None,
    target: str | None = None,
    output: str | None = None,
    masks: Mapping[str, Tensor] | None = None,
    lengths: Mapping[str, Tensor] | None = None,
    segments: Mapping[str, Tensor] | None = None,
    attention: Iterable[str] = (),
    **inputs: Tensor,
) -> list[list[Hypothesis]]:
    """For every row the `n_best` hypotheses, best first; fewer where fewer exist.

    `max_new_tokens` is one limit, or integers (B,), one per row; it, the inputs `given` by their place, `prompt`, `target`,
    `output`, `masks`, `lengths` and `segments` are those of `greedy`. `attention` names sites (`decoder.*.cross_attention`)
    whose weights every hypothesis brings along. A beam of one is greedy decoding whatever the penalty: it ends with its first
    end token. The encoder runs once per sentence, sentences that are done leave the batch. The model is used in its present
    mode: call `model.eval()` first.

    Raises InputError for settings out of range, for logits that are not numbers, and for what `greedy` raises it.
    """
    check_beams(beams, n_best, length_penalty)
    state = prefill(model, given, max_new_tokens, prompt, target, output, masks, lengths, segments, attention, inputs)
    search = _BeamSearch(model, state, beams, n_best, length_penalty)
    while search.advance():
        outputs = model.step(state.decoding, search.chosen, True, attention)
        search.read(outputs[state.output][:, -1], outputs.get("weights", {}))
    return search.found


def check_beams(beams: Any, n_best: Any, length_penalty: Any) -> None:
    """Raises InputError for settings of a beam search that are none."""
    for name, value in (("beams", beams), ("n_best", n_best)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(Diagnostic("TFK078", f"{name} is {value!r}", "it is a whole number from 1 up"))
    if n_best > beams:
        raise InputError(Diagnostic("TFK078", f"n_best is {n_best}, but there are {beams} beams", "ask for at most as many"))
    if not isinstance(length_penalty, (GnmtLengthPenalty, PowerLengthPenalty)):
        message = f"length_penalty is {length_penalty!r}"
        raise InputError(Diagnostic("TFK078", message, "it is a GnmtLengthPenalty(alpha) or a PowerLengthPenalty(alpha)"))


class _BeamSearch:
    """S sentences still searched, k live hypotheses each. `totals` (S, k) are their log-probabilities, -inf for places that no
    hypothesis takes; `chosen` (S * k, 1) the token that each of them has to be extended with next."""

    def __init__(self, model: Model, state: GenerationState, beams: int, n_best: int, penalty: LengthPenalty) -> None:
        self.model = model
        self.state, self.end, self.beams, self.penalty = state.decoding, state.rule.end_id, beams, penalty
        batch, device = state.decoding.batch, state.logits.device
        self.wide = torch.promote_types(state.logits.dtype, torch.float32)
        self.limits = state.limits
        self.floors = penalty.at(state.limits.to(self.wide))  # the penalties that no hypothesis exceeds, (S,)
        self.sentences = torch.arange(batch, device=device)
        self.totals = torch.zeros(batch, 1, dtype=self.wide, device=device)
        self.found: list[list[Hypothesis]] = [[] for _ in range(batch)]
        self.made = 0
        self.read(state.logits, state.weights)
        none = torch.zeros(batch, 1, 0, dtype=torch.int64, device=device)
        self.history = BeamHistory(
            none, none.to(self.wide), {site: new[:, :, None][:, :, :0] for site, new in self.weights.items()}
        )
        self.pool = FinishedHypotheses(batch, n_best, self.history, self.totals)

    def read(self, logits: Tensor, weights: Mapping[str, Tensor]) -> None:
        """Take the logits (S * k, V) of the next token, and the attention weights (S * k, H, Q, K) of its step."""
        S, width = self.totals.shape
        logits = logits.to(self.wide).contiguous()
        # In place: fresh memory of this size costs more than the arithmetic.
        self.log_probs = torch.log_softmax(logits, 1, out=logits).view(S, width, -1)
        self.weights = {
            site: tensor[:, :, -1].view(S, width, tensor.shape[1], tensor.shape[3]) for site, tensor in weights.items()
        }

    def advance(self) -> bool:
        """Choose the next tokens, collect what has ended, let sentences that are done leave; False when none is left."""
        S, width, V = self.log_probs.shape
        k = self.beams
        # At most `width` candidates end, one per live hypothesis: among 2 k there are k that live on, where there are so many.
        totals, index = best_tokens(self.log_probs, self.totals, 2 * k)
        parents, tokens = index // V, index % V
        rows = parents + torch.arange(S, device=parents.device)[:, None] * width
        log_probs = self.log_probs.view(S, width * V).gather(1, index)
        self.made += 1
        ended = tokens == self.end if self.end is not None else torch.zeros_like(tokens, dtype=torch.bool)
        last = self.limits == self.made
        # Stable: candidates that have not ended keep their order and come first.
        live = ended.to(torch.int8).argsort(dim=1, stable=True)[:, :k]
        kept = self._collect(totals[:, :k], rows[:, :k], tokens[:, :k], log_probs[:, :k], ended[:, :k], last)
        going_on = totals.gather(1, live).masked_fill(ended.gather(1, live), -torch.inf)
        best_attainable = going_on[:, 0] / self.floors
        done = last | (self.pool.scores[:, -1] >= best_attainable)
        if k == 1 and kept is not None:
            done |= kept[:, 0]
        if bool(totals[:, 0].isnan().any()):
            row = int(self.sentences[totals[:, 0].isnan()][0])
            message = f"the logits of row {row} are not numbers at token {self.made}"
            raise InputError(Diagnostic("TFK077", message, "the weights of the model, or its inputs, hold NaN or infinities"))
        going = None
        if bool(done.any()):
            leaving, going = done.nonzero()[:, 0], (~done).nonzero()[:, 0]
            for sentence, hypotheses in zip(self.sentences[leaving].tolist(), self.pool.take(leaving), strict=True):
                self.found[sentence] = hypotheses
            if not len(going):
                return False
            self.pool.keep(going)
            live, rows, tokens, log_probs, going_on = live[going], rows[going], tokens[going], log_probs[going], going_on[going]
            self.sentences, self.limits, self.floors = self.sentences[going], self.limits[going], self.floors[going]
        rows = rows.gather(1, live)
        tokens, log_probs = tokens.gather(1, live), log_probs.gather(1, live)
        self.history = self._longer(rows, tokens, log_probs)
        self.totals = going_on
        self.model.branch(self.state, rows.flatten(), k, going)
        self.chosen = tokens.view(-1, 1)
        return True

    def _collect(
        self, totals: Tensor, rows: Tensor, tokens: Tensor, log_probs: Tensor, ended: Tensor, last: Tensor
    ) -> Tensor | None:
        """Offer the best candidates (S, k) that have ended, or that may not grow, to the pool; gives which of them did."""
        kept = (ended | last[:, None]) & (totals > -torch.inf)
        if not bool(kept.any()):
            return None
        scores = (totals / self.penalty.at(float(self.made))).masked_fill(~kept, -torch.inf)
        self.pool.add(scores, totals, ended, self._longer(rows, tokens, log_probs))
        return kept

    def _longer(self, rows: Tensor, tokens: Tensor, log_probs: Tensor) -> BeamHistory:
        weights = {
            site: tensor.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, *tensor.shape[2:])
            for site, tensor in self.weights.items()
        }
        return self.history.pick(rows).grown(tokens, log_probs, weights)
