"""The output of a training run: a live panel on a terminal, otherwise plain lines."""

from __future__ import annotations

import math
import re
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import torch
from rich.live import Live

from ..catalogue import Catalogue, load_catalogue
from ..errors import Diagnostic
from ..errors.diagnostic import cut
from ..graph import Target, graph_of
from ..nn.model import Model
from ..recipe import Recipe
from ..slots.options import Component
from ..train import Outcome, Reach, Step, Trainer, ValidationResult, describe_counts
from ..train.trainer import last_step, steps_per_epoch
from .console import EscapingConsole
from .curve import SCORES
from .load_report import load_report_text
from .plan_data import faster_elsewhere_in_words, planned
from .sites import all_sites, fold
from .terminal import escaped, shown

EVERY = 30.0
"""Seconds between two lines about steps without a terminal."""

MAX_ROW = 2_000
"""Characters of a row of the description: it holds names of the recipe, and labels."""


def start_text(trainer: Trainer, changes: list[str]) -> str:
    """The description of data, model and settings, before the first step."""
    recipe, data, model = trainer.recipe, trainer.data, trainer.model
    epoch = trainer.epoch()
    steps = steps_per_epoch(trainer)
    rows = []
    for name in ("train", "validation"):
        if name in data.facts:
            rows.append(f"{name}: {describe_counts(data.facts[name])}")
            rows += [f"  {part}: {describe_counts(counts)}" for part, counts in data.parts.get(name, {}).items()]
    if (mixture := trainer.batches.mixture) is not None:
        parts = zip(data.parts["train"], mixture.counts, strict=True)
        total = sum(mixture.counts)
        rows.append("an epoch has " + ", ".join(f"{count:,} rows of {name} ({count / total:.1%})" for name, count in parts))
    if recipe.batching.max_length == min(model.plan.max_input_lengths.values(), default=None):
        rows.append(f"rows: at most {recipe.batching.max_length:,} tokens, the positions of the model")
    sizes = {column: tokeniser.size for column, tokeniser in data.tokenisers.items()}
    joint = len({id(tokeniser) for tokeniser in data.tokenisers.values()}) == 1 and len(sizes) > 1
    vocabulary = (
        f"{sizes['target']:,} ids, joint" if joint else ", ".join(f"{name} {size:,} ids" for name, size in sizes.items())
    )
    tokens = data.facts["train"].tokens
    if trainer.batches.mixture is not None:
        tokens = trainer.batches.tokens_by_column(trainer.progress.epoch)
    mean = {column: count / steps for column, count in tokens.items()}
    kind = recipe.tokeniser.kind if recipe.pretrained is None else f"that of {recipe.pretrained}"
    rows.append(f"vocabulary: {kind}, {vocabulary}" if sizes else f"labels: {', '.join(data.labels)}")
    changed = f"; changed: {', '.join(changes)}" if changes else ""
    count = model.parameter_count()
    if recipe.lora is not None:
        count = sum(parameter.numel() for name, parameter in model.named_parameters() if ".lora_" not in name)
    rows.append(f"model: {model.plan.name}, {count:,} parameters{changed}")
    if trainer.load_report is not None:
        rows += load_report_text(trainer.load_report).splitlines()
    rows += map(str, trainer.vectors)
    if recipe.lora is not None:
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        alpha = recipe.lora.alpha or recipe.lora.rank
        targets = ", ".join(recipe.lora.targets)
        rows.append(f"lora: rank {recipe.lora.rank}, alpha {alpha:g}, of {targets}; {trained:,} weights are trained")
    rows.append(
        f"a step: {' and '.join(f'{count:,.0f} {column} tokens' for column, count in mean.items())} on average, "
        f"{recipe.batching.accumulate} x at most {recipe.batching.tokens:,}; {100 * epoch.padding:.1f} % of a batch is padding"
        if sizes
        else f"a step: {recipe.batching.accumulate} x at most {recipe.batch_limit:,} images"
    )
    rows.append(f"an epoch: {steps:,} steps")
    if packing := trainer.batches.packing:
        rows.append(f"packed: batches of {packing.rows} rows of {packing.width} tokens, each with several documents")
    if shapes := trainer.batches.shape_count:
        rows.append(f"compiled: batches have {shapes} shape{'s' * (shapes > 1)}; the first step of each takes long")
    rows.append(recipe_line(recipe))
    if (device := trainer.batches.device).type == "cuda":
        target = Target("cuda", torch.cuda.get_device_capability(device), recipe.precision, compiled=recipe.compile)
        rows += gains_elsewhere(model, target, load_catalogue())
    if trainer.processes.count > 1:
        weights = "the weights are sharded (FSDP2)" if trainer.fsdp else "each has all weights (DDP)"
        rows.append(f"processes: {trainer.processes.count}, which share the batches of a step; {weights}")
    if trainer.progress.step:
        rows.append(f"resumed at step {trainer.progress.step:,}, epoch {trainer.progress.epoch}")
    return "\n".join(shown(cut(row, MAX_ROW)) for row in rows)


def gains_elsewhere(model: Model, target: Target, catalogue: Catalogue) -> list[str]:
    """What backends of distributions that are not installed would gain where `auto` chooses, a line for each."""
    sites = all_sites(graph_of(model.spec)).items()
    asked = model.sites
    groups = fold((name, site) for name, site in sites if asked[name] == "auto")
    plans = planned(groups, catalogue, target)
    return faster_elsewhere_in_words([(group.name, plan.not_installed) for group, plans in plans for plan in plans])


def recipe_line(recipe: Recipe) -> str:
    """The most important settings."""
    settings = [_part(recipe.optimiser), _part(recipe.schedule)]
    if recipe.loss.label_smoothing:
        settings.append(f"label smoothing {recipe.loss.label_smoothing:g} ({recipe.loss.smoothing})")
    settings += [f"{name} {value:g}" for name, value in (("clip_norm", recipe.clip_norm), ("average", recipe.average)) if value]
    limits = ", ".join(f"{name} {value:g}" for name, value in recipe.stopping.model_dump(exclude_none=True).items())
    return f"recipe: {recipe.name}: {', '.join([*settings, recipe.precision])}; stops at {limits}"


def _part(part: Component) -> str:
    options = part.options.model_dump(exclude_none=True, exclude_defaults=True)
    return " ".join([part.kind, *(f"{name} {value:g}" for name, value in options.items())])


def validation_text(result: ValidationResult) -> str:
    """One validation on one line, with the tokeniser of BLEU unless it is 13a."""
    scores = ", ".join(
        f"{SCORES.get(name, name)} {value:.2f}{_tokeniser(result, name)}" for name, value in result.scores.items()
    )
    best = ", the best so far" if result.best else ""
    parts = "".join(f"\n  {name}: {_part_scores(part)}" for name, part in result.corpora.items())
    mean = "mean of " + ("corpora" if len(result.corpora) > 2 else "both") + ": " if parts else ""
    return (
        f"step {result.step:,}, epoch {result.epoch}: validation {mean}ppl {result.perplexity:.2f}"
        f"{', ' if scores else ''}{scores}{best} ({result.seconds:.0f} s){parts}"
        + (f"\na plateau: the learning rate is reduced to {result.rate:.3g}" if result.rate is not None else "")
    )


def _part_scores(scores: Mapping[str, float]) -> str:
    """The scores of one corpus of several."""
    others = [f"{SCORES.get(name, name)} {value:.2f}" for name, value in scores.items() if name != "nll"]
    return ", ".join([f"ppl {math.exp(min(scores['nll'], 700.0)):.2f}", *others])


def _tokeniser(result: ValidationResult, score: str) -> str:
    name = re.search(r"\|tok:([^|]+)\|", result.signatures.get(score, ""))
    return f" ({name[1]})" if name and name[1] != "13a" else ""


class Speed:
    """Tokens per second over the last steps."""

    def __init__(self) -> None:
        self.steps: deque[Step] = deque(maxlen=50)

    def add(self, step: Step) -> None:
        self.steps.append(step)

    def text(self) -> str:
        seconds = sum(step.seconds for step in self.steps)
        source, target = (sum(getattr(step, f"{side}_tokens") for step in self.steps) for side in ("source", "target"))
        both = f"{source / seconds:,.0f} source, " if source else ""
        return f"{both}{target / seconds:,.0f} target tokens/s"


def step_text(step: Step, speed: Speed, left: str) -> str:
    return (
        f"step {step.step:,}, epoch {step.epoch}: loss {step.loss:.3f}, ppl {step.perplexity:.2f}, lr {step.rate:.2e}, "
        f"{speed.text()}{left}"
    )


class Lines:
    """Prints a line about the latest step every `EVERY` seconds on standard error, for logs."""

    def __init__(self) -> None:
        self.speed = Speed()
        self._last_line = time.monotonic()
        self._trainer: Trainer | None = None
        self._start = (0, 0.0)  # step and seconds

    def on_train_start(self, trainer: Trainer, changes: list[str]) -> None:
        self._trainer, self._start = trainer, (trainer.progress.step, trainer.progress.seconds)
        self._print(start_text(trainer, changes))

    def on_step_end(self, step: Step) -> None:
        self.speed.add(step)
        if time.monotonic() - self._last_line > EVERY:
            self._last_line = time.monotonic()
            self._print(step_text(step, self.speed, left_text(self._trainer, *self._start)))

    def on_validation_end(self, result: ValidationResult) -> None:
        self._print(validation_text(result))

    def on_checkpoint(self, step: int, path: Path) -> None:
        pass

    def on_warning(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        for diagnostic in diagnostics:
            self._print(shown(str(diagnostic)))

    def on_reach(self, reach: Reach) -> None:
        """Called once, with what the run will reach within its time limit."""
        self._print(reach.text)
        if reach.warning is not None:
            self.on_warning((reach.warning,))

    def on_train_end(self, reason: str, model: Path) -> None:
        pass

    def close(self) -> None:
        """Release the terminal."""

    def _print(self, text: str) -> None:
        print(escaped(text), file=sys.stderr, flush=True)


def left_text(trainer: Trainer | None, step: int, seconds: float) -> str:
    """The remaining time at most, from the nearest limit. This command started at `step`, after `seconds` of earlier ones."""
    if trainer is None or not trainer.progress.step:
        return ""
    progress, stopping = trainer.progress, trainer.recipe.stopping
    pace = (progress.seconds - seconds) / max(progress.step - step, 1)
    last = last_step(trainer)
    left = [] if last is None else [(last - progress.step) * pace]
    if stopping.max_minutes is not None:
        left.append(60 * stopping.max_minutes - progress.seconds)
    if not left:
        return ""
    rest = max(0, math.ceil(min(left)))
    return f", at most {rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02} left"


class LivePanel(Lines):
    """The latest step is updated in place; other lines stay above it."""

    def __init__(self) -> None:
        super().__init__()
        self.console = EscapingConsole(sys.stderr)
        self._live: Live | None = None

    def on_train_start(self, trainer: Trainer, changes: list[str]) -> None:
        super().on_train_start(trainer, changes)
        self._live = Live(console=self.console, refresh_per_second=4, transient=True)
        self._live.start()

    def on_step_end(self, step: Step) -> None:
        self.speed.add(step)
        if self._live is not None:
            self._live.update(step_text(step, self.speed, left_text(self._trainer, *self._start)))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _print(self, text: str) -> None:
        self.console.print(text)


def end_text(outcome: Outcome, directory: Path) -> str:
    """Why a run ended, and the places of its model and curve."""
    best, step = "", outcome.progress.best_step
    if step is not None:
        there = outcome.model.name == f"step-{step}"
        best = f", the best of step {step:,}" if there else f"; the model of step {step:,}, the best, is not there"
    lines = [f"stopped: {outcome.reason}", f"model: {outcome.model}{best}", f"curve: {directory / 'curve.html'}"]
    return "".join(f"{shown(line)}\n" for line in lines)
