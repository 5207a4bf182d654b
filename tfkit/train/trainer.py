"""One step of training after the other, and where to stop.

The gradient of a step is that of the mean loss over all target tokens of its batches, however they are cut: the sums of the
batches are divided by the count of the whole step before anything is added up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..data import NO_LABEL, Batch, Data, Epoch, Roles, Shapes, epoch_of, task_of
from ..nn.model import Model
from ..recipe import Recipe
from . import checkpoint
from .compiled import Compiled
from .loss import smoothed
from .moving_average import Average
from .optimiser import optimiser_for, set_rate
from .progress import Progress, Step

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


SMALLEST_SCALE = 2.0**-10
"""Where even this scale of the loss gives infinite gradients in float16, they are not too large but wrong."""


class NotFinite(Exception):
    """The loss of a step, or the norm of its gradient, is infinite or NaN; `batches` are those of the step."""

    def __init__(self, step: int, what: str, batches: list[Batch]) -> None:
        super().__init__(f"{what} of step {step} is no finite number")
        self.step, self.batches = step, batches


class Trainer:
    """A model, its optimiser and its place in the data."""

    def __init__(self, model: Model, recipe: Recipe, data: Data, roles: Roles, progress: Progress) -> None:
        self.model, self.recipe, self.data, self.roles, self.progress = model, recipe, data, roles, progress
        self.device = next(model.parameters()).device
        self.optimiser = optimiser_for(recipe, model)
        self.average = Average(model, recipe.average) if recipe.average is not None else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.precision == "float16")
        owner = model.plan.wires[roles.target].owner or roles.target
        self.task = task_of(recipe, roles, data.tokenisers["target"].size)
        self.width = int(model.nodes[owner].table().shape[1])  # type: ignore[operator]
        self.compiled = (
            Compiled(model, Shapes(data.train.lengths, recipe.batching.tokens), self.task) if recipe.compile else None
        )
        self._epoch: tuple[int, Epoch] | None = None

    @property
    def parameter_names(self) -> dict[int, str]:
        """The name of each parameter by its id, as checkpoints call it."""
        return {id(parameter): name for name, parameter in self.model.named_parameters()}

    def epoch(self) -> Epoch:
        """The batches of the present epoch."""
        if self._epoch is None or self._epoch[0] != self.progress.epoch:
            seed, tokens = self.recipe.seed, self.recipe.batching.tokens
            lengths, number = self.data.train.lengths, self.progress.epoch
            made = self.compiled.epoch(seed, number) if self.compiled else epoch_of(lengths, tokens, seed, number)
            self._epoch = number, made
        return self._epoch[1]

    def next_batches(self) -> list[Batch]:
        """The batches of the next step, the last ones of an epoch perhaps fewer; the place in the data moves behind them."""
        batches, first = self.epoch().batches, self.progress.batch
        last = min(first + self.recipe.batching.accumulate, len(batches))
        self.progress.batch = last
        return [self._batch(batches[number].tolist(), number) for number in range(first, last)]

    def _batch(self, rows: list[int], number: int) -> Batch:
        """What is random about a batch is drawn from its place in the data alone."""
        draw = np.random.Generator(np.random.PCG64([self.recipe.seed, self.progress.epoch, number]))
        batch = self.task.batch(self.data.train, rows, draw)
        return (self.compiled.filled(batch, rows) if self.compiled else batch).to(self.device)

    @property
    def epoch_done(self) -> bool:
        return self.progress.batch >= len(self.epoch().batches)

    def step(self) -> Step | None:
        """One step of the optimiser; None where the scaler of float16 left it out, to try again with a smaller scale.

        Raises NotFinite, and then nothing was changed but the place in the data.
        """
        began = time.perf_counter()
        batches = self.next_batches()
        count = sum(batch.target_tokens for batch in batches)
        number = self.progress.step + 1
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        losses = [self._backward(batch, count) for batch in batches]
        loss, nll = (float(torch.stack(values).sum()) / count for values in zip(*losses, strict=True))
        if not math.isfinite(loss):
            raise NotFinite(number, "the loss", batches)
        rate = set_rate(self.optimiser, self.recipe, number, self.width)
        self.scaler.unscale_(self.optimiser)
        limit = self.recipe.clip_norm if self.recipe.clip_norm is not None else math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit, foreach=True))
        if not self.scaler.is_enabled() and not math.isfinite(norm):
            raise NotFinite(number, "the norm of the gradient", batches)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimiser)
        self.scaler.update()
        if self.scaler.get_scale() < scale:
            if scale < SMALLEST_SCALE:
                raise NotFinite(number, f"with the scale {scale:g} the gradient", batches)
            return None
        if self.average is not None:
            self.average.update(self.model)
        source = sum(batch.source_tokens for batch in batches)
        progress = self.progress
        progress.step, progress.source_tokens, progress.target_tokens = (
            number, progress.source_tokens + source, progress.target_tokens + count,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        return Step(number, progress.epoch, loss, nll, rate, norm, source, count, seconds)

    def _backward(self, batch: Batch, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the gradient of a batch, its share of the `count` target tokens of the step; gives its sums of loss and nll."""
        dtype = DTYPES.get(self.recipe.precision)
        with torch.autocast(self.device.type, dtype) if dtype is not None else nullcontext():
            logits = (self.compiled or self.model)(lengths=batch.lengths, **batch.inputs)[self.roles.output]
        options = self.recipe.loss
        loss, nll = smoothed(logits, batch.labels, options.label_smoothing, options.smoothing, NO_LABEL)
        self.scaler.scale(loss / count).backward()  # type: ignore[no-untyped-call]
        return loss.detach(), nll

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Everything of this trainer that is a tensor, by the file of a checkpoint."""
        weights = dict(self.model.state_dict())
        found = {
            checkpoint.MODEL: weights,
            checkpoint.OPTIMISER: checkpoint.optimiser_tensors(self.optimiser, self.parameter_names),
            checkpoint.GENERATORS: checkpoint.generator_tensors(self.device),
        }
        return found if self.average is None else {**found, checkpoint.AVERAGE: self.average.values}

    def state(self) -> dict[str, Any]:
        """What else there is, as JSON."""
        return {"scaler": self.scaler.state_dict(), "average_steps": None if self.average is None else self.average.step}

    def restore(self, tensors: Mapping[str, Mapping[str, torch.Tensor]], state: Mapping[str, Any]) -> None:
        """Put back what `tensors` and `state` gave. Copied, into memory that the allocator gave: at the addresses of a file
        matrix products may round differently."""
        self.model.load_state_dict(tensors[checkpoint.MODEL])
        checkpoint.restore_optimiser(self.optimiser, self.parameter_names, tensors[checkpoint.OPTIMISER])
        checkpoint.restore_generators(self.device, tensors[checkpoint.GENERATORS])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            for name, value in self.average.values.items():
                value.copy_(tensors[checkpoint.AVERAGE][name])
            self.average.step = int(state["average_steps"])

    def place(self) -> Place:
        """Where the next step begins: its batch and the generators."""
        return Place(self.progress.batch, checkpoint.generator_tensors(self.device))

    def go_back(self, place: Place) -> None:
        self.progress.batch = place.batch
        checkpoint.restore_generators(self.device, place.generators)

    @torch.no_grad()
    def try_longest(self) -> None:
        """Run the longest row once, so that what does not fit is told before the work and not in the middle of it."""
        for corpus in (self.data.train, self.data.validation):
            if corpus is None:
                continue
            for row in {int(column.argmax()) for column in corpus.lengths.values()}:
                batch = self.task.batch(corpus, [row], np.random.default_rng(0)).to(self.device)
                self.model.eval()(lengths=batch.lengths, **batch.inputs)


@dataclass(frozen=True)
class Place:
    """The place in the data and the states of the generators, from which a step can be seen again."""

    batch: int
    generators: dict[str, torch.Tensor]


def why_stop(recipe: Recipe, progress: Progress) -> str | None:
    """Why training ends here, None where it goes on."""
    limits = recipe.stopping
    if limits.max_steps is not None and progress.step >= limits.max_steps:
        return f"{limits.max_steps:,} steps are made"
    if limits.max_epochs is not None and progress.epoch > limits.max_epochs:
        return f"{limits.max_epochs:,} epochs are done"
    if limits.patience is not None and progress.stale >= limits.patience:
        return f"{progress.stale} validations without a better score"
    if limits.max_minutes is not None and progress.seconds >= 60 * limits.max_minutes:
        return f"{limits.max_minutes:g} minutes are over"
    return None
