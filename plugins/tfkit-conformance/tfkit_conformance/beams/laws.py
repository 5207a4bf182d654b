"""The laws of every beam top-k: the right values in order, defined ties, NaN and infinities, sentences that do not depend on
each other; and the laws of its `greedy`, if it has one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..finding import Violation

Select = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]
Greedy = Callable[[Tensor], Tensor]
SHAPES = ((3, 1, 300, 10), (1, 1, 128, 1), (2, 2, 7, 4), (5, 4, 131, 8), (6, 5, 999, 64), (4, 5, 10_000, 10), (2, 3, 37_001, 6))
"""Sentences, beams, vocabulary, count."""
UNIT = 2.0**-24
"""The unit roundoff of float32."""
LANES, EXPONENTIAL = 8, 16
"""The sum of V exponentials is assumed to have V / LANES terms in a row, and each an error of EXPONENTIAL roundings."""


@dataclass(frozen=True)
class BeamCase:
    """One step. `logits` (S * k, V), `totals` (S, k)."""

    select: Select
    logits: Tensor
    totals: Tensor
    count: int

    def run(self, logits: Tensor | None = None, totals: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Values, indices and log-probabilities (S, count). Raises Violation for other shapes, dtypes or indices."""
        logits, totals = (self.logits if logits is None else logits), (self.totals if totals is None else totals)
        values, indices, log_probs = self.select(logits.clone(), totals.clone(), self.count)
        wanted = [((len(totals), self.count), dtype) for dtype in (torch.float32, torch.int64, torch.float32)]
        returned = [(tuple(tensor.shape), tensor.dtype) for tensor in (values, indices, log_probs)]
        if returned != wanted:
            raise Violation("", f"returned {returned}, expected {wanted}")
        most = totals.shape[1] * logits.shape[1]
        if bool(((indices < 0) | (indices >= most)).any()):
            raise Violation("", f"an index is not from 0 to {most - 1} ({self.shape})")
        return values, indices, log_probs

    @property
    def shape(self) -> str:
        S, k = self.totals.shape
        return f"{S} sentences, {k} beams, {self.logits.shape[1]} tokens, {self.count} asked for"

    @property
    def exact(self) -> Tensor:
        """(S, k * V) log-probabilities in float64."""
        return torch.log_softmax(self.logits.double(), 1).view(len(self.totals), -1)

    def sums(self, exact: Tensor) -> Tensor:
        """(S, k * V) these with the totals of their beams."""
        S, k = self.totals.shape
        return (exact.view(S, k, -1) + self.totals.double()[:, :, None]).flatten(1)


@dataclass(frozen=True)
class GreedyCase:
    """One step of greedy decoding. `logits` (R, V)."""

    greedy: Greedy
    logits: Tensor

    @property
    def shape(self) -> str:
        return f"{len(self.logits)} rows, {self.logits.shape[1]} tokens"


@dataclass(frozen=True)
class BeamLaw:
    """`cases` are drawn from a seed; `evaluate` raises Violation, or returns the largest error over its bound. A law with
    `greedy` is about the function for greedy decoding."""

    name: str
    rule: str
    cases: Callable[[Any, int], Iterator[Any]]
    evaluate: Callable[[Any], float | None]
    greedy: bool = False


def _drawn(select: Select, seed: int) -> Iterator[BeamCase]:
    """Flat and peaked distributions, far from zero in some rows."""
    generator = torch.Generator().manual_seed(seed)
    for number, (S, k, V, count) in enumerate(SHAPES):
        logits = (0.1, 3, 30)[(number + seed) % 3] * torch.randn(S * k, V, generator=generator)
        logits += 100 * torch.randn(S * k, 1, generator=generator)
        yield BeamCase(select, logits, -5 * torch.rand(S, k, generator=generator), count)


def _tied(select: Select, seed: int) -> Iterator[BeamCase]:
    """Logits of few levels, the same in all beams of a sentence: nearly all values are equal to others."""
    generator = torch.Generator().manual_seed(seed)
    for S, k, V, count in SHAPES:
        row = torch.randint(0, 2 + seed % 3, (S, 1, V), generator=generator).float()
        yield BeamCase(select, row.expand(S, k, V).reshape(S * k, V), torch.zeros(S, k), count)


def _few(select: Select, seed: int) -> Iterator[BeamCase]:
    """Fewer candidates than asked for, beams that are not in use, and tokens without probability."""
    generator = torch.Generator().manual_seed(seed)
    for S, k, V, count in ((2, 1, 3, 5), (3, 2, 500, 8), (2, 3, 5, 15), (1, 5, 4096, 10)):
        logits, totals = torch.randn(S * k, V, generator=generator), -torch.rand(S, k, generator=generator)
        totals[:, 1:] = -torch.inf
        logits[:, 1::2] = -torch.inf
        yield BeamCase(select, logits, totals, count)


def _greedy_drawn(greedy: Any, seed: int) -> Iterator[GreedyCase]:
    """The logits of all cases above; each as it is, and with NaN and infinities at the ends of the vocabulary and between."""
    for drawn in (_drawn, _tied, _few):
        for case in drawn(greedy, seed):
            yield GreedyCase(greedy, case.logits)
            logits, V = case.logits.clone(), case.logits.shape[1]
            for row, bad in zip(logits, (torch.nan, torch.inf, torch.nan, -torch.inf), strict=False):
                row[torch.tensor([(len(logits) * seed) % V, V // 2, V - 1])] = bad
            logits[-1] = -torch.inf
            yield GreedyCase(greedy, logits)


def _greedy(case: GreedyCase) -> None:
    logits = case.logits.clone()
    tokens = case.greedy(logits)
    if (tokens.shape, tokens.dtype) != (logits.shape[:1], torch.int64):
        raise Violation(
            "", f"greedy returned {tuple(tokens.shape)} {tokens.dtype}, expected {tuple(logits.shape[:1])} torch.int64"
        )
    want = case.logits.argsort(dim=1, descending=True, stable=True)[:, 0]  # NaN is larger than all numbers
    if not torch.equal(tokens, want):
        row = int((tokens != want).nonzero()[0])
        raise Violation("", f"greedy returned {int(tokens[row])} in row {row}, expected {int(want[row])} ({case.shape})")
    if not torch.equal(logits.nan_to_num(7.0), case.logits.nan_to_num(7.0)):
        raise Violation("", f"greedy overwrote the logits ({case.shape})")


def _bound(case: BeamCase) -> float:
    values, indices, log_probs = case.run()
    V, exact = case.logits.shape[1], case.exact
    want = exact.gather(1, indices)
    beams = indices // V + torch.arange(len(want))[:, None] * case.totals.shape[1]
    largest = case.logits.double().amax(1)[beams]
    size = (case.logits.double().view(len(want), -1).gather(1, indices) - largest).abs()
    bound = UNIT * (2 * size + 2 * want.abs() + V / LANES + EXPONENTIAL)
    worst = _within(case, log_probs, want, bound, "log_probs")
    totals = case.sums(exact).gather(1, indices)
    return max(worst, _within(case, values, totals, bound + UNIT * totals.abs(), "values"))


def _within(case: BeamCase, got: Tensor, want: Tensor, bound: Tensor, tensor: str) -> float:
    share = ((got.double() - want).abs() / bound).nan_to_num(torch.inf, torch.inf)
    worst = float(share.max())
    if worst > 1:
        index = tuple(int(at) for at in torch.unravel_index(share.argmax(), share.shape))
        raise Violation(
            "", f"the error is larger than rounding allows ({case.shape})", tensor=tensor, index=index,
            got=float(got[index]), want=float(want[index]), bound=float(bound[index]),
        )  # fmt: skip
    return worst


def _largest(case: BeamCase) -> None:
    """No value that is left out exceeds one that is returned by more than rounding; values descend."""
    values, indices, _ = case.run()
    if bool((values[:, 1:] > values[:, :-1]).any()):
        raise Violation("", f"values do not descend ({case.shape})")
    if any(len(set(row)) < len(row) for row in indices.tolist()):
        raise Violation("", f"an index is returned twice ({case.shape})")
    sums = case.sums(case.exact)
    chosen = sums.gather(1, indices)
    rest = sums.scatter(1, indices, -torch.inf).amax(1)
    slack = UNIT * (8 * sums.abs().amax(1) + case.logits.shape[1] / LANES + EXPONENTIAL)
    if bool((rest > chosen.amin(1) + slack).any()):
        raise Violation("", f"a larger value is left out ({case.shape})")


def _ties(case: BeamCase) -> None:
    _, indices, _ = case.run()
    logits = case.logits.view(len(case.totals), -1)
    want = logits.argsort(dim=1, descending=True, stable=True)[:, : case.count]
    if not torch.equal(indices, want):
        row = int((indices != want).any(1).nonzero()[0])
        message = f"of equal values the lower index does not come first ({case.shape}): {indices[row, :4].tolist()}..."
        raise Violation("", f"{message}, expected {want[row, :4].tolist()}...")


def _impossible(case: BeamCase) -> None:
    values, indices, _ = case.run()
    possible = case.logits[:: case.totals.shape[1]].isfinite().sum(1).clamp(max=case.count)
    for row, number in enumerate(possible.tolist()):
        if not bool(values[row, :number].isfinite().all()) or not bool((values[row, number:] == -torch.inf).all()):
            raise Violation("", f"of {number} possible candidates the values are {values[row].tolist()[:6]}... ({case.shape})")
        used = case.logits.view(len(values), -1)[row, indices[row, :number]]
        if bool((indices[row, :number] >= case.logits.shape[1]).any()) or not bool(used.isfinite().all()):
            raise Violation("", f"a beam that is not in use, or a token without probability, is selected ({case.shape})")


def _not_a_number(case: BeamCase) -> None:
    right, k = case.run(), case.totals.shape[1]
    for bad in (torch.nan, torch.inf):
        for at in {0, case.logits.shape[1] // 2, case.logits.shape[1] - 1}:
            logits = case.logits.clone()
            logits[k - 1, at] = bad
            selection = case.run(logits)
            if not bool(selection[0][0, 0].isnan()):
                raise Violation(
                    "", f"with a logit of {bad} the first value is {float(selection[0][0, 0])}, not NaN ({case.shape})"
                )
            if not all(torch.equal(one[1:], other[1:]) for one, other in zip(selection, right, strict=True)):
                raise Violation("", f"other sentences feel a logit of {bad} ({case.shape})")


def _alone(case: BeamCase) -> None:
    together, k = case.run(), case.totals.shape[1]
    for row in range(len(case.totals)):
        alone = case.run(case.logits[row * k : row * k + k], case.totals[row : row + 1])
        if not all(torch.equal(one[0], other[row]) for one, other in zip(alone, together, strict=True)):
            raise Violation("", f"sentence {row} has another result alone ({case.shape})")


def _unchanged(case: BeamCase) -> None:
    totals = case.totals.clone()
    first = case.select(case.logits.clone(), totals, case.count)
    kept = [tensor.clone() for tensor in first]
    if not torch.equal(totals, case.totals):
        raise Violation("", f"the totals are overwritten ({case.shape})")
    case.select(case.logits.flip(1), totals, case.count)
    if not all(torch.equal(one, other) for one, other in zip(first, kept, strict=True)):
        raise Violation("", f"a later call changes the result of an earlier one ({case.shape})")
    again = case.select(case.logits.clone(), totals, case.count)
    if not all(torch.equal(one, other) for one, other in zip(again, kept, strict=True)):
        raise Violation("", f"the same call gives another result later ({case.shape})")


LAWS = (
    BeamLaw("error bound", "values and log-probabilities have the errors of float32 only", _drawn, _bound),
    BeamLaw("largest", "the largest values are returned, in descending order", _drawn, _largest),
    BeamLaw("ties", "of equal values the lower index comes first", _tied, _ties),
    BeamLaw("impossible", "unused beams and tokens without probability are not selected; -inf fills up", _few, _impossible),
    BeamLaw("not a number", "NaN and +inf give NaN in their sentence alone", _drawn, _not_a_number),
    BeamLaw("sentence alone", "a sentence has the same bits alone and in a batch", _drawn, _alone),
    BeamLaw("inputs", "totals are not overwritten, and no call changes another", _drawn, _unchanged),
    BeamLaw("greedy", "greedy decoding takes the first of the largest logits, or of NaN", _greedy_drawn, _greedy, greedy=True),
)
