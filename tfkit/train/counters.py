"""Counters of a checkpoint that its run cannot have reached.

The data and the recipe say how many steps lead to `epoch` and `batch`, and how many tokens their batches have, whatever the
number of processes. Where they do not, bounds are checked: the labels of hidden tokens, rows of which other pieces are drawn,
many earlier epochs of mixtures and packed rows, and the steps that float16 skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from .batches import TrainingBatches
from .callbacks import Progress
from .checkpoint_state import Scaler, State

HALVINGS = 300
"""float16 skips a step only where it halves its scale, a float32 number; every step grows the scale again at most once."""
LAST_COUNTED = 1 << 24
"""The last step that the counters of an optimiser, float32 numbers, count."""


def impossible(state: State, optimiser: Mapping[str, Tensor], batches: TrainingBatches, always: bool) -> Iterator[str]:
    """The contradictions between the counters of a checkpoint, its position in the data, the recipe, and the steps of each
    parameter in the optimiser (`NAME/step`). `always`: all parameters take part in every step."""
    progress, accumulate = state.progress, batches.recipe.batching.accumulate
    step, epoch, batch = progress.step, progress.epoch, progress.batch
    if batch >= (count := batches.count(epoch)):
        yield f"`progress.batch` is {batch}, epoch {epoch} has {count}"
        return
    if batch % accumulate:
        yield f"`progress.batch` is {batch}, and a step uses {accumulate} batches"
    used = batches.used(epoch, batch)
    skipped = step + HALVINGS if isinstance(state.scaler, Scaler) else 0
    if not used.steps[0] - skipped <= step <= used.steps[1]:
        place = f"`progress.epoch` {epoch:,} with `progress.batch` {batch:,}"
        yield f"`progress.step` is {step:,}, and {_of(used.steps)} lead to {place}"
    # A step that float16 skips uses its batches, whose tokens do not count.
    missed = max(0, min(skipped, used.steps[1] - step)) * accumulate * batches.largest
    for name, (least, most) in (("source_tokens", used.source_tokens), ("target_tokens", used.target_tokens)):
        if not least - missed <= (value := getattr(progress, name)) <= most:
            yield f"`progress.{name}` is {value:,}, and the batches before have {_of((max(0, least - missed), most))}"
    if progress.target_tokens < step:
        yield f"`progress.target_tokens` is {progress.target_tokens:,} after {step:,} steps, and each has at least one"
    yield from _impossible_scores(progress, batches)
    if state.average_steps not in (None, step):
        yield f"`average_steps` is {state.average_steps:,} after {step:,} steps, and each step is averaged once"
    counted = {name: float(value) for name, value in optimiser.items() if name.endswith("/step")}
    last = min(step, LAST_COUNTED)
    for name, value in counted.items():
        if not (value == last if always else 0 <= value <= last and value.is_integer()):
            rule = "all parameters take part in every step" if always else "a parameter takes part in some of them"
            yield f"`{name}` of the optimiser is {value:.15g} after {step:,} steps, and {rule}"
            break
    else:
        if batches.recipe.optimiser.kind != "sgd" and (largest := max(counted.values(), default=0.0)) != last:
            yield f"the largest `step` of the optimiser is {largest:g} after {step:,} steps, and a parameter takes part in each"


def _impossible_scores(progress: Progress, batches: TrainingBatches) -> Iterator[str]:
    """The contradictions between the validations of a run. How many there were is not known, because `validation.every_steps`
    may change when a run is resumed. But a step is validated once at most."""
    recipe, validated = batches.recipe, progress.validated
    scored = batches.data.validation is not None and validated > 0
    if (progress.best is not None) != scored:
        what = "missing" if progress.best is None else f"{progress.best:g}"
        validation = f"the last validation was that of step {validated:,}" if scored else "nothing was validated"
        yield f"`progress.best` is {what}, and {validation}"
    if progress.stale > (most := validated - (progress.best_step or 0)):
        yield (
            f"`progress.stale` is {progress.stale:,} after {progress.step:,} steps, and at most {most:,} is possible: those "
            f"between the best, `best_step` {progress.best_step or 0:,}, and the last validation, `validated` {validated:,}"
        )
    reductions, stale, best = progress.reductions, progress.plateau_stale, progress.plateau_best
    if recipe.schedule.kind != "plateau":
        for name, value in (("reductions", reductions or None), ("plateau_stale", stale or None), ("plateau_best", best)):
            if value is not None:
                yield f"`progress.{name}` is {value:,}, and the schedule is `{recipe.schedule.kind}`, which has none"
        return
    patience = recipe.schedule.options.patience
    if stale > patience:
        yield f"`progress.plateau_stale` is {stale:,}, and after {patience:,}, `schedule.patience`, the rate is reduced"
    needed = reductions * (patience + 1) + stale + (best is not None)
    if needed > validated or (best is None and needed):
        kept = f"`progress.reductions` {reductions:,} and `progress.plateau_stale` {stale:,}"
        yield f"{kept} need {needed:,} validations, and there were at most {0 if best is None else validated:,}"
    if best is not None and (progress.best is None or best > progress.best):
        yield f"`progress.plateau_best` is {best:g}, and the best score is {progress.best}"


def _of(bounds: tuple[int, int]) -> str:
    least, most = bounds
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def impossible_scale(scaler: Scaler, new: Mapping[str, Any], step: int) -> Iterator[str]:
    """The contradictions between a loss scale, that of a new run, and the steps."""
    state = scaler.model_dump()
    for name in ("growth_factor", "backoff_factor", "growth_interval"):
        if state[name] != new[name]:
            yield f"`scaler.{name}` is {state[name]:g}, and that of the run is {new[name]:g}"
            return
    most = min(step, scaler.growth_interval - 1)
    if scaler.growth_tracker > most:
        yield f"`scaler._growth_tracker` is {scaler.growth_tracker:,} after {step:,} steps, and at most {most:,} is possible"
    growth = step // scaler.growth_interval
    doublings = math.log2(scaler.scale / new["scale"])
    if not doublings.is_integer() or doublings > growth:
        rule = f"it begins with {new['scale']:g}, is halved, and is doubled {growth:,} times at most"
        yield f"`scaler.scale` is {scaler.scale:.15g} after {step:,} steps, and {rule}"
