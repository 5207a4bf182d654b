"""Beam search: find the sequences Y with the highest score log P(Y) / penalty(|Y|).

Every step extends the `beams` live hypotheses of a sentence by every token. All candidates have the same length, so they are
ranked by log-probability. A candidate among the best `beams` that ends in the end token is finished; it is stored if its score
is among the `n_best`. The best `beams` candidates without an end token stay live. At the limit of tokens the live hypotheses
are stored too, unfinished: after all finished ones, unless `unfinished` is "ranked".

A sentence is complete when no live hypothesis can exceed the worst stored score. A live log-probability L only decreases. For
alpha >= 0 the penalty is largest at the limit of tokens, so no continuation scores more than L / penalty(limit). Stopping at
the first `beams` finished hypotheses would miss the best one for alpha > 0. `early_stopping` stops as transformers does: `True`
there, `False` where the best live hypothesis, if it ended now, would not exceed the worst of `beams` finished ones.

Of equal scores the hypothesis that ended earlier wins, then the lower beam, then the lower id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..cpu.products import are_plain
from ..errors import Diagnostic, InputError
from ..errors.arguments import check_whole
from ..nn.model import Model
from ..nn.prefix import Prefix
from ..slots.processor_kernels import RecordedBeams
from .columns import places_in
from .hypotheses import Finished, Hypothesis, Level, hypotheses_of
from .penalty import GnmtLengthPenalty, LengthPenalty, PowerLengthPenalty
from .prefill import MOST_ROWS, GenerationState, prefill
from .score_filters import Filter, ScoreFilters, filters_of, forced_ids, refuse_dead_ends
from .step_graphs import CapturedBeams, StepGraphs, one_search
from .top_k import best_continuations, best_of, fastest

GNMT = GnmtLengthPenalty()
EarlyStopping = bool | Literal["never"]
Unfinished = Literal["last", "ranked"]


@torch.no_grad()
@one_search()
def beam_search(
    model: Model,
    *positional: Tensor,
    beams: int = 5,
    max_new_tokens: int | Tensor | None = None,
    length_penalty: LengthPenalty = GNMT,
    n_best: int = 1,
    early_stopping: EarlyStopping = "never",
    unfinished: Unfinished = "last",
    prompt: Tensor | None = None,
    target: str | None = None,
    output: str | None = None,
    masks: Mapping[str, Tensor] | None = None,
    lengths: Mapping[str, Tensor] | None = None,
    segments: Mapping[str, Tensor] | None = None,
    attention: Iterable[str] = (),
    filters: Sequence[Filter] = (),
    prefixes: Sequence[Sequence[int]] | None = None,
    graphs: StepGraphs | None = None,
    shortlists: Sequence[Sequence[int] | Tensor] | None = None,
    **inputs: Tensor,
) -> list[list[Hypothesis]]:
    """Find the most probable sequences of every row.

    Args:
        model: The model. Call `model.eval()` first, or dropout is active.
        *positional: As in `greedy`.
        beams: Live hypotheses per row. One beam is greedy decoding with any penalty: it ends with its first end token.
        max_new_tokens: As in `greedy`.
        length_penalty: Divides the log-probability: `GnmtLengthPenalty` or `PowerLengthPenalty`.
        n_best: Hypotheses to return per row, at most `beams`.
        early_stopping: When a row is complete: "never" before nothing better can come; True with `beams` finished hypotheses;
            False if the best live one would not be better if it ended now. These are the values of transformers.
        unfinished: Whether hypotheses that the limit cuts off come "last", or are "ranked" by their scores as in transformers.
        prompt: As in `greedy`.
        target: As in `greedy`.
        output: As in `greedy`.
        masks: As in `greedy`.
        lengths: As in `greedy`.
        segments: As in `greedy`.
        attention: Sites (`decoder.*.cross_attention`) whose weights every hypothesis holds.
        filters: As in `greedy`, but they change log-probabilities, and these are what hypotheses are ranked by and hold.
        prefixes: As in `greedy`.
        graphs: As in `greedy`.
        shortlists: As in `greedy`.
        **inputs: As in `greedy`.

    Returns:
        The hypotheses of every row, best first; fewer than `n_best` if fewer exist. The encoder runs once per row.

    Raises:
        InputError: A setting is out of range, or the logits are NaN; and as `greedy`.
    """
    check_beams(beams, n_best, length_penalty, early_stopping, unfinished)
    filters_of(filters)
    start = prefill(
        model, positional, max_new_tokens, prompt, target, output, masks, lengths, segments, attention, inputs,
        shortlists, prefixes, None if graphs is None else graphs.first_pass,
    )  # fmt: skip
    filter_scores = filters_of(filters, forced_ids(prefixes, start))
    never = filter_scores.few_forbidden(start.rule.vocab_size)
    never = torch.empty(0, dtype=torch.int64, device="cpu") if never is None and not filter_scores else never
    captured = None if graphs is None else graphs.begin_beams(start, beams, attention, never)
    search = _BeamSearch(model, start, beams, n_best, length_penalty, filter_scores, early_stopping, unfinished, captured)
    del start  # its logits
    while search.advance():
        if captured is not None:
            if search.can_end_without_python():
                while search.end_without_python():
                    pass
                break
            search.read(captured.following(search.chosen[:, 0]), {})
            continue
        outputs = model.step(search.decoding, search.chosen, True, attention)
        search.read(outputs[search.output][:, -1], outputs.get("weights", {}))
    return search.hypotheses()


def check_beams(beams: Any, n_best: Any, length_penalty: Any, early_stopping: Any, unfinished: Any) -> None:
    """Raises InputError for invalid settings of a beam search."""
    for name, value in (("beams", beams), ("n_best", n_best)):
        check_whole(name, value, largest=MOST_ROWS)
    if n_best > beams:
        raise InputError(Diagnostic("TFK078", f"n_best is {n_best}, but there are {beams} beams", "ask for at most as many"))
    if not isinstance(length_penalty, (GnmtLengthPenalty, PowerLengthPenalty)):
        message = f"length_penalty is {length_penalty!r}"
        raise InputError(Diagnostic("TFK078", message, "it is a GnmtLengthPenalty(alpha) or a PowerLengthPenalty(alpha)"))
    if early_stopping != "never" and not isinstance(early_stopping, bool):
        raise InputError(Diagnostic("TFK078", f"early_stopping is {early_stopping!r}", 'it is "never", False or True'))
    if unfinished not in ("last", "ranked"):
        raise InputError(Diagnostic("TFK078", f"unfinished is {unfinished!r}", 'it is "last" or "ranked"'))


class _BeamSearch:
    """The search for S remaining sentences with k live hypotheses each.

    Attributes:
        decoding: Keys and values, and the encoded inputs.
        totals: (S, k) log-probabilities of the live hypotheses, -inf for unused beams.
        chosen: (S * k, 1) their last tokens.
        finished: The finished hypotheses of the remaining sentences.
        complete: The numbers of complete sentences, and their finished hypotheses.
    """

    def __init__(
        self, model: Model, start: GenerationState, beams: int, n_best: int, penalty: LengthPenalty, filters: ScoreFilters,
        early_stopping: EarlyStopping, unfinished: Unfinished, captured: CapturedBeams | None,
    ) -> None:  # fmt: skip
        self.model, self.decoding, self.output, self.captured = model, start.decoding, start.output, captured
        self.top_k = fastest(model.beam_top_k)
        self.end, self.beams, self.penalty = start.rule.end_id, beams, penalty
        batch, device = start.decoding.batch, start.logits.device
        self.wide = torch.promote_types(start.logits.dtype, torch.float32)
        self.limits, self.prompt, self.filters = start.limits, start.prompt, filters
        self.n_best, self.early_stopping = n_best, early_stopping
        few = filters.few_forbidden(start.rule.vocab_size)
        self.forbidden = None if few is None else few.to(device)
        self.never = 0 if few is None else len(few)
        self.columns, self.every_id = start.columns, few is None and bool(filters)
        if self.forbidden is not None and self.columns is not None:
            self.forbidden = self.columns.places(self.forbidden)
        self.max_penalties = penalty.at(start.limits.to(self.wide))  # (S,)
        self.sentences = torch.arange(batch, device=device)
        self.totals = torch.zeros(batch, 1, dtype=self.wide, device=device)
        self.levels: list[Level] = []
        self.weights: list[dict[str, Tensor]] = []
        self.ids = self.sentences.new_zeros(batch, 1, 0)  # of the live hypotheses, which only filters read
        self.finished = Finished.none(self.totals, n_best if early_stopping == "never" else beams)
        self.complete: list[tuple[Tensor, Finished]] = []
        self.ranked, self.length = unfinished == "ranked", 0
        self.read(start.logits, start.weights)

    def hypotheses(self) -> list[list[Hypothesis]]:
        """The hypotheses of all sentences, once they are complete."""
        sentences, finished = zip(*self.complete, strict=True)
        order = torch.cat(sentences).argsort()
        best = Finished(*(torch.cat(held)[order, : self.n_best] for held in zip(*finished, strict=True)))
        return hypotheses_of(best, self.levels, self.weights)

    def read(self, logits: Tensor, weights: Mapping[str, Tensor]) -> None:
        """Read the logits (S * k, V) of the next token, and the attention weights (S * k, H, Q, K) of its step."""
        if self.columns is not None:
            sentences = self.sentences.repeat_interleave(self.totals.shape[1])
            logits = self.columns.read(logits, sentences, whole=self.every_id)
        self.logits = logits.to(self.wide).contiguous()
        self.weights.append({site: tensor[:, :, -1].clone() for site, tensor in weights.items()})

    def advance(self) -> bool:
        """Select the next tokens, store finished hypotheses and remove complete sentences. Returns whether any remain."""
        (S, width), V, k = self.totals.shape, self.logits.shape[1], self.beams
        in_float32 = self.wide == torch.float32 and are_plain(self.logits, self.totals)
        top_k = self.top_k if in_float32 else best_continuations
        # At most `width` <= k candidates end, one per live hypothesis. Of the best 2 k candidates at least k then stay live, if
        # there are that many.
        if self.forbidden is not None:
            totals, index, log_probs = self._allowed(*top_k(self.logits, self.totals, 2 * k + len(self.forbidden) * width), V)
        elif self.filters:
            totals, index, log_probs = best_of(self._filtered().view(S, width, V), self.totals, 2 * k)
        else:
            totals, index, log_probs = top_k(self.logits, self.totals, 2 * k)  # (S, 2 k) each
        del self.logits  # The logits of the next step are written to this memory.
        parents, tokens = index // V, index % V
        if self.columns is not None and not self.every_id:
            tokens = self.columns.ids[tokens]
        rows = parents + torch.arange(S, device=parents.device)[:, None] * width
        self.length += 1
        ended = tokens == self.end if self.end is not None else torch.zeros_like(tokens, dtype=torch.bool)
        last = self.limits == self.length
        # The sort is stable: candidates that have not ended come first, in their order.
        live = ended.to(torch.int8).argsort(dim=1, stable=True)[:, :k]
        stored = self._store(totals[:, :k], rows[:, :k], tokens[:, :k], log_probs[:, :k], ended[:, :k], last)
        live_totals = totals.gather(1, live).masked_fill(ended.gather(1, live), -torch.inf)
        complete = last | self._stops(live_totals[:, 0])
        if k == 1 and stored is not None:
            complete |= stored[:, 0]
        self._refuse_unless_finite(~(totals[:, 0] < torch.inf))  # NaN is not less
        remaining = None
        if bool(complete.any()):
            leaving, remaining = complete.nonzero()[:, 0], (~complete).nonzero()[:, 0]
            self.complete.append((self.sentences[leaving], self.finished.of(leaving)))
            if not len(remaining):
                return False
            self.finished = self.finished.of(remaining)
            live, live_totals = live[remaining], live_totals[remaining]
            rows, tokens, log_probs = rows[remaining], tokens[remaining], log_probs[remaining]
            self.sentences, self.limits = self.sentences[remaining], self.limits[remaining]
            self.max_penalties = self.max_penalties[remaining]
        rows = rows.gather(1, live)
        tokens, log_probs = tokens.gather(1, live), log_probs.gather(1, live)
        self.levels.append(Level(rows, tokens, log_probs))
        self.totals = live_totals
        if self.every_id:
            self.ids = torch.cat([self.ids.flatten(0, 1)[rows], tokens[:, :, None]], 2)
        if self.captured is None:
            self.model.branch(self.decoding, rows.flatten(), k, remaining)
        else:
            self.captured.branch(rows.flatten(), remaining)
        self.chosen = tokens.view(-1, 1)
        return True

    def _refuse_unless_finite(self, wrong: Tensor) -> None:
        if bool(wrong.any()):
            row = int(self.sentences[wrong][0])
            message = f"the logits of row {row} are NaN or infinite at token {self.length}, or too far apart to be added"
            fix = "the weights of the model, or its inputs, hold NaN, infinities or very large numbers, or a filter wrote them"
            raise InputError(Diagnostic("TFK077", message, fix))

    def can_end_without_python(self) -> bool:
        """Whether recorded steps can search on themselves."""
        searches = self.captured is not None and self.captured.search is not None and self.wide == torch.float32
        return searches and not self.every_id

    def end_without_python(self) -> bool:
        """Search on until all sentences are complete, or few of them are left. Returns whether any are."""
        assert self.captured is not None
        assert self.captured.search is not None
        recorded, (S, k), steps = self.captured.captured, self.totals.shape, int(self.limits.max()) - self.length
        step, finished, chosen = recorded.step, self.finished, self.chosen
        forbidden, end = self.sentences[:0] if self.forbidden is None else self.forbidden, self.end
        lists = None if step.columns is None else step.columns.lists[:S].clone()
        if lists is not None:  # the step reads and selects places in these
            forbidden, end = torch.arange(self.never, device=lists.device), None if end is None else self.never
            finished = finished._replace(ids=places_in(lists, finished.ids))
            chosen = places_in(lists, chosen.view(S, k)).view(-1, 1)
        rows, tokens = torch.zeros(2, steps, S, k, dtype=torch.int64, device="cpu")
        penalties = [self.penalty.at(float(max(length, 1))) for length in range(steps + self.length + 1)]
        search = RecordedBeams(
            ids=step.ids, place=step.place, order=step.order, logits=recorded.logits, totals=self.totals.contiguous(),
            limits=self.limits.contiguous(), penalties=torch.tensor(penalties, device="cpu"),
            max_penalties=self.max_penalties.contiguous(),
            forbidden=forbidden, end_id=end, early_stopping=self.early_stopping, ranked=self.ranked,
            rows=rows, tokens=tokens, log_probs=torch.zeros_like(rows, dtype=torch.float32),
            finished=tuple(held.contiguous() for held in finished),
            status=torch.zeros(S, dtype=torch.uint8, device="cpu"),
        )  # fmt: skip
        step.ids[: S * k], before = chosen, int(step.place)
        self.captured.search(recorded.replay, search)
        self.length += int(step.place) - before
        refuse_dead_ends(search.status == 3, self.sentences, self.length)
        self._refuse_unless_finite(search.status == 2)
        steps = int(step.place) - before
        finished, left, chosen = Finished(*search.finished), search.status == 0, step.ids[: S * k]
        if lists is not None:
            names = lists.clamp(min=0)
            tokens = names.gather(1, tokens.transpose(0, 1).flatten(1)).view(S, -1, k).transpose(0, 1)
            finished = finished._replace(ids=names.gather(1, finished.ids))
            chosen = names.gather(1, chosen.view(S, k)).view(-1, 1)
        self.levels += map(Level, rows[:steps], tokens[:steps], search.log_probs[:steps])
        self.complete.append((self.sentences[~left], finished.of(~left)))
        if not bool(left.any()):
            return False
        self.levels[-1] = Level(*(held[left] for held in self.levels[-1]))
        self.finished, self.totals = finished.of(left), search.totals[left]
        self.sentences, self.limits, self.max_penalties = self.sentences[left], self.limits[left], self.max_penalties[left]
        remaining = torch.arange(S * k, device=rows.device).view(S, k)[left].flatten()
        self.chosen = chosen[remaining]
        self.captured.captured = self.captured.graphs.with_fewer_rows(recorded, remaining)
        return True

    def _stops(self, best_live: Tensor) -> Tensor:
        """Whether (S,) the stored hypotheses suffice; `best_live` (S,) are the log-probabilities of the best live ones."""
        worst = self.finished.scores[:, -1]  # -inf if there are fewer than wanted
        if self.early_stopping is True:
            return worst > -torch.inf
        if self.early_stopping is False:
            return (worst > -torch.inf) & (worst >= best_live / self.penalty.at(float(self.length)))
        return worst >= best_live / self.max_penalties

    def _allowed(self, totals: Tensor, index: Tensor, log_probs: Tensor, V: int) -> tuple[Tensor, Tensor, Tensor]:
        """The best 2 k of the candidates (S, C) without the forbidden tokens, of which there are at most C - 2 k."""
        assert self.forbidden is not None
        forbidden = torch.isin(index % V, self.forbidden) & ~totals.isnan()  # NaN is an error later
        dead = (forbidden | (totals == -torch.inf)).all(1) & (self.finished.scores[:, 0] == -torch.inf)
        refuse_dead_ends(dead, self.sentences, self.length)
        order = forbidden.to(torch.int8).argsort(dim=1, stable=True)[:, : 2 * self.beams]
        totals = totals.masked_fill(forbidden, -torch.inf)
        return totals.gather(1, order), index.gather(1, order), log_probs.gather(1, order)

    def _filtered(self) -> Tensor:
        """The log-probabilities (S * k, V) of the next token after the filters."""
        S, width = self.totals.shape
        prompts = self.prompt[self.sentences].repeat_interleave(width, 0)
        ids = torch.cat([prompts, self.ids.flatten(0, 1)], 1)
        remaining = (self.limits - self.length).repeat_interleave(width, 0)
        rows = self.sentences.repeat_interleave(width)
        log_probs = self.filters(self.logits.log_softmax(1), Prefix(ids, self.length, remaining, self.end), rows)
        best = (log_probs.view(S, width, -1).amax(2) + self.totals).amax(1)  # (S,)
        dead = (best == -torch.inf) & (self.finished.scores[:, 0] == -torch.inf)
        refuse_dead_ends(dead, self.sentences, self.length)
        return log_probs

    def _store(
        self, totals: Tensor, rows: Tensor, tokens: Tensor, log_probs: Tensor, ended: Tensor, last: Tensor
    ) -> Tensor | None:
        """Store the best candidates (S, k) that have ended or are at the limit. Returns a mask (S, k) of these, or None."""
        stored = (ended | last[:, None]) & (totals > -torch.inf)
        if not bool(stored.any()):
            return None
        scores = (totals / self.penalty.at(float(self.length))).masked_fill(~stored, -torch.inf)
        lengths = torch.full_like(rows, self.length)
        self.finished = self.finished.insert(Finished(scores, totals, lengths, ended, rows, tokens, log_probs), self.ranked)
        return stored
