"""The scores of a comparison: mean and spread of each recipe, and its difference to the first one, paired by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ..files import FileModel
from ..train.log import Number

# Student's t distribution with a whole number n of degrees of freedom.
#
# With theta = atan(t / sqrt(n)), P(|T| < t) is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4):
#
#     n odd:   2/pi (theta + sin theta (cos theta + 2/3 cos^3 theta + ... + (2 4 ... (n-3)) / (1 3 ... (n-2)) cos^(n-2) theta))
#     n even:  sin theta (1 + 1/2 cos^2 theta + ... + (1 3 ... (n-3)) / (2 4 ... (n-2)) cos^(n-2) theta)


def central_probability(t: float, degrees: int) -> float:
    """P(|T| < t) for t >= 0."""
    theta = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2
    term, total = (math.cos(theta), 0.0) if odd else (1.0, 0.0)
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= math.cos(theta) ** 2 * (power + 1) / (power + 2)
    inner = math.sin(theta) * total
    return 2 / math.pi * (theta + inner) if odd else inner


def quantile(probability: float, degrees: int) -> float:
    """The t with P(|T| < t) = probability, by bisection."""
    low, high = 0.0, 1.0
    while central_probability(high, degrees) < probability:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if central_probability(middle, degrees) < probability else (low, middle)
    return high


CONFIDENCE = 0.95


class RunResult(FileModel):
    """The result of a finished run, as its file stores it.

    Attributes:
        score: The best validation score, by the metric of the recipe; NaN if it was not finite.
        step: The step of this validation.
        steps: The number of steps.
        seconds: The training time.
        parameters: The number of parameters of the model.
        reason: Why the run ended.
        digest: The digest of the recipe, its spec and its data.
    """

    score: Number
    step: Annotated[int, Field(ge=0)]
    steps: Annotated[int, Field(ge=0)]
    seconds: Annotated[float, Field(ge=0)]
    parameters: Annotated[int, Field(ge=0)]
    reason: Annotated[str, Field(max_length=1000)]
    digest: Annotated[str, Field(max_length=64)]


@dataclass(frozen=True)
class CandidateResult:
    """All runs of one recipe.

    Attributes:
        name: The name of the recipe.
        runs: The finished runs by seed.
        failures: The error of each failed run, by seed.
        directory: The directory of the runs; that of a seed is `seed-N`.
    """

    name: str
    runs: Mapping[int, RunResult]
    failures: Mapping[int, str]
    directory: Path

    @cached_property
    def scores(self) -> dict[int, float]:
        """The finite scores by seed."""
        scores = {seed: run.score for seed, run in self.runs.items()}
        return {seed: score for seed, score in scores.items() if score is not None and math.isfinite(score)}

    @property
    def mean(self) -> float:
        """The mean score; NaN without scores."""
        return statistics.fmean(self.scores.values()) if self.scores else math.nan

    @property
    def deviation(self) -> float:
        """The sample standard deviation of the scores; NaN for fewer than two."""
        return statistics.stdev(self.scores.values()) if len(self.scores) > 1 else math.nan


@dataclass(frozen=True)
class Difference:
    """Scores minus those of the first recipe with the same seeds. The interval is that of Student's t.

    Attributes:
        seeds: The number of pairs.
        mean: The mean difference; NaN without pairs.
        low: The lower limit of the 95 % confidence interval; NaN for fewer than two pairs.
        high: Its upper limit.
        p: The two-sided p-value of the paired t-test; NaN for fewer than two pairs.
    """

    seeds: int
    mean: float
    low: float
    high: float
    p: float

    @property
    def sign(self) -> int:
        """1 or -1 if the interval excludes 0, else 0."""
        return (self.low > 0) - (self.high < 0)


def paired_difference(scores: Mapping[int, float], base: Mapping[int, float]) -> Difference:
    """The differences of two recipes, paired by seed."""
    differences = [scores[seed] - base[seed] for seed in scores if seed in base]
    count = len(differences)
    mean = statistics.fmean(differences) if count else math.nan
    if count < 2:
        return Difference(count, mean, math.nan, math.nan, math.nan)
    error = statistics.stdev(differences) / math.sqrt(count)
    if error == 0:
        return Difference(count, mean, mean, mean, float(mean == 0))
    half = quantile(CONFIDENCE, count - 1) * error
    return Difference(count, mean, mean - half, mean + half, 1 - central_probability(abs(mean) / error, count - 1))


@dataclass(frozen=True)
class Comparison:
    """The result of `compare_recipes`.

    Attributes:
        metric: The score of the validation: `loss` in nats per target token (lower is better), or a score from 0 to 100.
        seeds: The seeds.
        candidates: The results of the recipes, the first of which the others are compared with.
    """

    metric: str
    seeds: tuple[int, ...]
    candidates: tuple[CandidateResult, ...]

    def difference(self, candidate: CandidateResult) -> Difference:
        """The difference of a recipe to the first one.

        Args:
            candidate: One of `candidates`.

        Returns:
            The difference, paired by seed.
        """
        return paired_difference(candidate.scores, self.candidates[0].scores)

    def verdict(self, candidate: CandidateResult) -> str:
        """Whether a recipe is better than the first one, in one sentence.

        Args:
            candidate: One of `candidates`, but not the first.
        """
        base, difference = self.candidates[0].name, self.difference(candidate)
        if not difference.seeds:
            return f"{candidate.name} and {base} have no finished seed in common."
        if difference.seeds == 1:
            return f"{candidate.name} minus {base} is {difference.mean:+.4g} with one seed: a spread needs at least two."
        if difference.low == difference.high == 0:
            return f"{candidate.name} and {base} have equal scores with all {difference.seeds} seeds."
        measured = (
            f"mean difference {difference.mean:+.4g}, 95 % interval {difference.low:+.4g} to {difference.high:+.4g},"
            f" {difference.seeds} seeds, p = {difference.p:.2g}"
        )
        if not difference.sign:
            return f"No difference between {candidate.name} and {base} is seen with this many seeds: {measured}."
        better = difference.sign == (-1 if self.metric == "loss" else 1)
        return f"{candidate.name} is {'better' if better else 'worse'} than {base}: {measured}."
