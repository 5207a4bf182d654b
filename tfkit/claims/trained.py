"""A claim that trains: recipes that differ by overrides, trained with several seeds and compared by the pairs of the claim."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from ..comparison import Candidate, CandidateResult, RunResult, compare_recipes
from ..comparison.results import Difference, paired_difference
from ..comparison.runner import MARK
from ..errors import Diagnostic, StoreError
from ..files import make_folders
from .claim import Chart, Data, Request, Table, duration, environment

TINY = ("stopping.max_steps=2", "validation.every_steps=2", "batching.tokens=64")


@dataclass(frozen=True)
class Pair:
    """Two recipes of which the claim says that one is better. They differ in one setting; a test looks.

    Attributes:
        better: The recipe that the claim prefers.
        other: The recipe that it is compared with.
        setting: The key of the recipe or of the spec that holds all differences; `norm` is also `final_norm`.
        says: What the claim says, between the two names.
        for_equal_parameters: A second key that changes with it, so that the models have equally many parameters.
    """

    better: str
    other: str
    setting: str
    says: str = "is better than"
    for_equal_parameters: str = ""


@dataclass(frozen=True)
class Lengths:
    """A score by the length of the text.

    Attributes:
        what: What is measured, for tables.
        unit: What the length counts.
        measure: One number per seed for each bucket of lengths, `low-high`.
    """

    what: str
    unit: str
    measure: Callable[[CandidateResult, Request], dict[str, list[float]]]


@dataclass(frozen=True)
class Trained:
    """A claim that trains recipes.

    Attributes:
        sentence: The claim.
        about: What is compared.
        variants: The overrides of the recipe, by name.
        pairs: The recipes of which the claim says something.
        write: Writes the text, the specs and the recipe into a directory and returns the recipe.
        specs: The names of the specs that overrides of `model` name.
        seconds: Processor time of a run, about.
        evaluate: Whether the data agree; by default what the scores say of the pairs.
        by_length: A score by the length of the text, or None.
        text: Whether the claim is on real text, whose directory a request names.
    """

    sentence: str
    about: str
    variants: Mapping[str, Sequence[str]]
    pairs: Sequence[Pair]
    write: Callable[[Path, Request], Path]
    seconds: float
    specs: Sequence[str] = ()
    evaluate: Callable[[Data, Sequence[Pair]], str] = field(default=lambda data, pairs: verdict_of_pairs(data, pairs))
    by_length: Lengths | None = None
    text: bool = False

    def needs(self, seeds: int) -> str:
        """What a run takes, in words."""
        runs = seeds * len(self.variants)
        return (
            f"{len(self.variants)} recipes with {seeds} seeds, {runs} runs, about {duration(runs * self.seconds)} of one core"
        )

    def candidates(self, place: Path, request: Request) -> list[Candidate]:
        """Write the task into a directory; the recipes that differ by overrides."""
        recipe = self.write(place, request)
        names = {self.pairs[0].better, self.pairs[0].other} if request.tiny else self.variants.keys()
        placed = {f"model={name}": f"model={place / name}" for name in self.specs}
        return [
            Candidate(str(recipe), (*(placed.get(change, change) for change in changes), *(TINY if request.tiny else ())), name)
            for name, changes in self.variants.items()
            if name in names
        ]

    def run(self, request: Request) -> Data:
        """Train all recipes with all seeds, and compare them."""
        start, total, finished = time.perf_counter(), request.seeds * (2 if request.tiny else len(self.variants)), [0]

        def ended(name: str, seed: int, outcome: RunResult | str) -> None:
            finished[0] += 1
            left = (time.perf_counter() - start) / finished[0] * (total - finished[0])
            result = outcome if isinstance(outcome, str) else f"{outcome.score:.4g} at step {outcome.step:,}"
            waiting = f", about {duration(left)} left" if left else ""
            request.report(f"{name}, seed {seed}: {result}; {finished[0]} of {total} runs{waiting}")

        with TemporaryDirectory() as temporary:
            place = request.directory or Path(temporary)
            if place.exists() and any(place.iterdir()) and not (place / "runs" / MARK).is_file():
                message = f"{place} exists and holds no runs of a claim"
                raise StoreError(Diagnostic("TFK080", message, "name another --directory"))
            make_folders(place)
            candidates, seeds = self.candidates(place, request), range(request.seeds)
            compared = compare_recipes(candidates, place / "runs", seeds=seeds, workers=request.workers, on_run_end=ended)
            lengths = self.by_length
            return {
                **environment(),
                "seeds": list(compared.seeds),
                "metric": compared.metric,
                "variants": {runs.name: list(self.variants[runs.name]) for runs in compared.candidates},
                "scores": {runs.name: _by_seed(runs.scores) for runs in compared.candidates},
                "failures": {runs.name: _by_seed(runs.failures) for runs in compared.candidates if runs.failures},
                "by_length": {runs.name: lengths.measure(runs, request) for runs in compared.candidates} if lengths else {},
            }  # fmt: skip

    def verdict(self, data: Data) -> str:
        """Whether the data agree."""
        return self.evaluate(data, [pair for pair in self.pairs if {pair.better, pair.other} <= data["scores"].keys()])

    def tables(self, data: Data) -> list[Table]:
        """The scores of the recipes, and those by length."""
        rows = [
            [name, str(len(values)), *(f"{value:.4g}" for value in (fmean(values), min(values), max(values))),
             f"{stdev(values):.2g}" if len(values) > 1 else ""]
            for name, values in ((name, list(scores.values())) for name, scores in data["scores"].items())
            if values
        ]  # fmt: skip
        tables = [Table(f"validation {data['metric']}", ["recipe", "seeds", "mean", "min", "max", "sd"], rows)]
        if self.by_length and data["by_length"]:
            buckets = list(next(iter(data["by_length"].values())))
            head = ["recipe", *(f"{bucket} {self.by_length.unit}" for bucket in buckets)]
            rows = [
                [name, *(f"{fmean(values[bucket]):.1f}" if values[bucket] else "-" for bucket in buckets)]
                for name, values in data["by_length"].items()
            ]
            tables.append(Table(f"{self.by_length.what} by length, mean over seeds", head, rows))
        return tables

    def charts(self, data: Data) -> list[Chart]:
        """The scores of each recipe, and those by length."""
        scores = {name: list(by_seed.values()) for name, by_seed in data["scores"].items() if by_seed}
        ticks = {float(at): name for at, name in enumerate(scores)}
        lines = {name: [(float(at), fmean(v), min(v), max(v))] for at, (name, v) in enumerate(scores.items())}
        charts = [Chart(f"validation {data['metric']}", "recipe", lines, ticks)]
        if self.by_length and data["by_length"]:
            buckets = list(next(iter(data["by_length"].values())))
            lines = {
                name: [(float(at), fmean(v), min(v), max(v)) for at, v in enumerate(values.values())]
                for name, values in data["by_length"].items()
            }
            charts.append(Chart(self.by_length.what, self.by_length.unit, lines, dict(enumerate(buckets))))
        return charts


def _by_seed(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(seed): value for seed, value in values.items()}


def written(difference: Difference) -> str:
    """A difference with its interval."""
    if difference.seeds < 2:
        return f"{difference.mean:+.3g} (one seed, which has no spread)"
    return f"{difference.mean:+.3g} (95 % interval {difference.low:+.3g} to {difference.high:+.3g}, {difference.seeds} seeds)"


def compared(pair: Pair, difference: Difference, sign: int, what: str) -> str:
    """What the difference of a pair says of it; `sign` is 1 where the data agree. `Not seen`: the interval holds 0."""
    word = {1: "the data agree", -1: "the data say the opposite"}.get(sign, "not seen")
    if difference.seeds < 2:
        word = "open"
    elif not sign and pair.says == "is no worse than":
        word = "open, no difference is seen and none is ruled out"
    return f"{pair.better} {pair.says} {pair.other}: {word}, {what}{written(difference)}."


def verdict_of_pairs(data: Data, pairs: Sequence[Pair]) -> str:
    """What the scores say of each pair."""
    sentences = []
    for pair in pairs:
        difference = paired_difference(data["scores"][pair.better], data["scores"][pair.other])
        sign = -difference.sign if data["metric"] == "loss" else difference.sign
        sentences.append(compared(pair, difference, sign, f"{data['metric']} "))
    return " ".join(sentences)
