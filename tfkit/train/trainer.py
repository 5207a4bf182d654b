"""One step of training after the other, and where to stop.

The gradient of a step is that of the mean loss over all target tokens of its batches, however they are cut: the sums of the
batches are divided by the count of the whole step before anything is added up.

Several processes share the batches of a step. What is random about a batch, dropout included, is drawn from its place in the
data alone, so that a step is the same whoever works on it, and whether or not the run was stopped before it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..data import NO_LABEL, Batch, Data, Epoch, Shapes, epoch_of, roles_of, task_of
from ..errors import Diagnostic, StoreError
from ..io.loading import check_tensors
from ..nn.model import Model
from ..recipe import Recipe
from . import checkpoint
from .callbacks import Progress, Step
from .compiled import Compiled
from .distributed.ddp_fsdp import full_tensor, gradient_sync, replicated, shard, shard_of
from .distributed.process_group import ProcessGroup
from .loss import smoothed
from .moving_average import Average
from .optimiser import optimiser_for, set_rate
from .pretrained import LoadReport
from .state import Scaler, State

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


SMALLEST_SCALE = 2.0**-10
"""Where even this scale of the loss gives infinite gradients in float16, they are not too large but wrong."""


class NotFinite(Exception):
    """The loss of a step, or the norm of its gradient, is infinite or NaN; `batches` are the numbers of its batches."""

    def __init__(self, step: int, what: str, batches: range) -> None:
        super().__init__(f"{what} of step {step} is no finite number")
        self.step, self.batches = step, batches


class Trainer:
    """A model, its optimiser and its place in the data. `build` gives other models of the same spec; with `fsdp` each of the
    `processes` has its shard of every weight, otherwise all of them."""

    def __init__(
        self,
        model: Model,
        build: Callable[[], Model],
        recipe: Recipe,
        data: Data,
        processes: ProcessGroup | None = None,
        fsdp: bool = False,
    ) -> None:
        self.model, self.build, self.recipe, self.data, self.progress = model, build, recipe, data, Progress()
        self.processes, self.fsdp = processes or ProcessGroup(), fsdp
        self.roles = roles = roles_of(model.plan, recipe.data.kind)
        self.device = next(model.parameters()).device
        if fsdp:
            shard(model, self.processes)
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
        self._runner: nn.Module = model if self.compiled is None else self.compiled.model
        if self.processes.count > 1 and not fsdp:
            self._runner = replicated(self._runner, self._leaves_out())
        self.taken: LoadReport | None = None

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

    def next_batches(self) -> range:
        """The numbers of the batches of the next step, at the end of an epoch perhaps fewer; the place in the data moves behind
        them."""
        first = self.progress.batch
        self.progress.batch = min(first + self.recipe.batching.accumulate, len(self.epoch().batches))
        return range(first, self.progress.batch)

    def batch(self, number: int) -> Batch:
        """A batch of the present epoch."""
        draw = np.random.Generator(np.random.PCG64(self._place(number)))
        rows = self.epoch().batches[number].tolist()
        batch = self.task.batch(self.data.train, rows, draw)
        return (self.compiled.filled(batch, rows) if self.compiled else batch).to(self.device)

    def _place(self, number: int) -> list[int]:
        return [self.recipe.seed, self.progress.epoch, number]

    @property
    def epoch_done(self) -> bool:
        return self.progress.batch >= len(self.epoch().batches)

    def step(self) -> Step | None:
        """One step of the optimiser; None where the scaler of float16 left it out, to try again with a smaller scale.

        Raises NotFinite, and then nothing was changed but the place in the data.
        """
        began, processes, number = time.perf_counter(), self.processes, self.progress.step + 1
        group = self.next_batches()
        mine = {at: self.batch(at) for at in group[processes.rank :: processes.count]}
        source, count = (
            int(each)
            for each in processes.sums(
                sum(batch.source_tokens for batch in mine.values()), sum(batch.target_tokens for batch in mine.values())
            )
        )
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        sums = zip(*self._backward(group, mine, count), strict=True)
        own = [float(torch.stack(values).sum()) for values in sums] or [0.0, 0.0]
        loss, nll = (each / count for each in processes.sums(*own))
        if not math.isfinite(loss):
            raise NotFinite(number, "the loss", group)
        rate = set_rate(self.optimiser, self.recipe, number, self.width)
        self.scaler.unscale_(self.optimiser)
        limit = self.recipe.clip_norm if self.recipe.clip_norm is not None else math.inf
        norm = float(full_tensor(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit, foreach=True)))
        if not self.scaler.is_enabled() and not math.isfinite(norm):
            raise NotFinite(number, "the norm of the gradient", group)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimiser)
        self.scaler.update()
        if self.scaler.get_scale() < scale:
            if scale < SMALLEST_SCALE:
                raise NotFinite(number, f"with the scale {scale:g} the gradient", group)
            return None
        if self.average is not None:
            self.average.update(self.model)
        progress = self.progress
        progress.step, progress.source_tokens, progress.target_tokens = (
            number, progress.source_tokens + source, progress.target_tokens + count,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        return Step(number, progress.epoch, loss, nll, rate, norm, source, count, seconds)

    def _backward(self, group: range, mine: Mapping[int, Batch], count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Add up the gradient of a step of `count` target tokens; gives the sums of loss and nll of each of one's own batches.

        Every process goes through as many batches as the others, because all of them collect weights and add up gradients
        together: one that has no batch left goes through another's without counting it.
        """
        processes = self.processes
        rounds = -(-len(group) // processes.count)
        turns = [*mine, *([group[0]] * (rounds - len(mine)))]
        found: list[tuple[torch.Tensor, torch.Tensor]] = []
        for turn, number in enumerate(turns):
            batch, counts = mine.get(number) or self.batch(number), turn < len(mine)
            torch.manual_seed(int(np.random.SeedSequence(self._place(number)).generate_state(1, np.uint64)[0]))
            with gradient_sync(self._runner, turn == rounds - 1):
                loss, nll = self._losses(self._runner, batch)
                self.scaler.scale(loss * (counts / count)).backward()  # type: ignore[no-untyped-call]
            if counts:
                found.append((loss.detach(), nll))
        if processes.count > 1:  # Both DDP and FSDP2 give the mean; and what a loss is scaled by decides what float16 can hold.
            gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
            torch._foreach_mul_(gradients, float(processes.count))
        return found

    def _losses(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The sums of loss and nll of a batch."""
        dtype = DTYPES.get(self.recipe.precision)
        within = torch.autocast(self.device.type, dtype) if dtype is not None else nullcontext()
        with within, self.compiled.marked_dynamic(batch) if self.compiled is not None else nullcontext():
            logits = model(lengths=batch.lengths, **batch.inputs)[self.roles.output]
        options = self.recipe.loss
        return smoothed(logits, batch.labels, options.label_smoothing, options.smoothing, NO_LABEL)

    def _leaves_out(self) -> bool:
        """Whether some parameter takes no part in the loss, which DDP must know."""
        batch = self.task.batch(self.data.train, [0], np.random.default_rng(0)).to(self.device)
        loss, _ = self._losses(self.model.eval(), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        left = any(each.requires_grad and each.grad is None for each in self.model.parameters())
        self.model.zero_grad(set_to_none=True)
        return left

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Everything of this trainer that is a tensor, by the file of a checkpoint."""
        weights = dict(self.model.state_dict())
        found = {
            checkpoint.MODEL: weights,
            checkpoint.OPTIMISER: checkpoint.optimiser_tensors(self.optimiser, self.parameter_names),
        }
        return found if self.average is None else {**found, checkpoint.AVERAGE: self.average.values}

    def state(self) -> dict[str, Any]:
        """What else there is, as JSON."""
        return {"scaler": self.scaler.state_dict(), "average_steps": None if self.average is None else self.average.step}

    def check(self, directory: Path, tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Raises StoreError where the tensors of a checkpoint are not those of this trainer."""
        begun = {name.rpartition("/")[0] for name in tensors[checkpoint.OPTIMISER]}
        parameters = {name: each for name, each in self.model.named_parameters() if name in begun}
        moments = {f"{name}/{key}": each for name, each in parameters.items() for key in ("exp_avg", "exp_avg_sq")}
        steps = {f"{name}/step": torch.zeros((), device="meta") for name in parameters}
        for file, like in {**self.tensors(), checkpoint.OPTIMISER: {**moments, **steps}}.items():
            check_tensors(directory / file, tensors.get(file, {}), like, "this run")

    def check_state(self, directory: Path, state: State) -> None:
        """Raises StoreError where the state of a checkpoint is not one of this trainer."""
        epoch = state.progress.epoch
        here = {
            "scaler": (isinstance(state.scaler, Scaler), self.scaler.is_enabled()),
            "average_steps": (state.average_steps is not None, self.average is not None),
        }
        diagnostics = [
            Diagnostic(
                "TFK082", f"{directory / checkpoint.STATE}: `{name}` is {'there' if there else 'missing'}", "it was altered"
            )
            for name, (there, wanted) in here.items()
            if there != wanted
        ]
        if state.progress.batch >= (count := self._batches(epoch)):
            message = f"{directory / checkpoint.STATE}: `progress.batch` is {state.progress.batch}, epoch {epoch} has {count}"
            diagnostics.append(Diagnostic("TFK082", message, "it was altered"))
        if diagnostics:
            raise StoreError(diagnostics)

    def _batches(self, epoch: int) -> int:
        """How many batches an epoch has."""
        before, self.progress.epoch = self.progress.epoch, epoch
        try:
            return len(self.epoch().batches)
        finally:
            self.progress.epoch = before

    def restore(self, tensors: Mapping[str, Mapping[str, torch.Tensor]], state: State) -> None:
        """Put back what `tensors` and `state` gave. Copied, into memory that the allocator gave: at the addresses of a file
        matrix products may round differently."""
        own = self.model.state_dict()
        weights = tensors[checkpoint.MODEL]
        self.model.load_state_dict({name: shard_of(value, own[name]) for name, value in weights.items()})
        checkpoint.restore_optimiser(self.optimiser, self.parameter_names, tensors[checkpoint.OPTIMISER])
        if isinstance(state.scaler, Scaler):
            self.scaler.load_state_dict(state.scaler.model_dump())
        if self.average is not None:
            for name, value in self.average.values.items():
                value.copy_(shard_of(tensors[checkpoint.AVERAGE][name], value))
            self.average.step = state.average_steps or 0

    @contextmanager
    def validated_model(self) -> Iterator[Model]:
        """A whole model, with the averaged weights where there are any, that this process alone may use: its own one, or where
        the weights are sharded a copy for the time being."""
        if not self.fsdp:
            with self.average.used_by(self.model) if self.average is not None else nullcontext():
                yield self.model.eval()
            return
        weights = {**self.model.state_dict(), **(self.average.values if self.average is not None else {})}
        copy = self.build()
        copy.load_state_dict({name: full_tensor(value) for name, value in weights.items()})
        yield copy.eval()

    @torch.no_grad()
    def try_longest(self) -> None:
        """Run the longest row once, so that what does not fit is told before the work and not in the middle of it."""
        for corpus in (self.data.train, self.data.validation):
            if corpus is None:
                continue
            for row in {int(column.argmax()) for column in corpus.lengths.values()}:
                batch = self.task.batch(corpus, [row], np.random.default_rng(0)).to(self.device)
                self.model.eval()(lengths=batch.lengths, **batch.inputs)


def why_stop(recipe: Recipe, progress: Progress, closing: float) -> str | None:
    """Why training ends here, None where it goes on. `closing` is how many seconds the validation at its end will take."""
    limits = recipe.stopping
    if limits.max_steps is not None and progress.step >= limits.max_steps:
        return f"{limits.max_steps:,} steps are made"
    if limits.max_epochs is not None and progress.epoch > limits.max_epochs:
        return f"{limits.max_epochs:,} epochs are done"
    if limits.patience is not None and progress.stale >= limits.patience:
        return f"{progress.stale} validations without a better score"
    if limits.max_minutes is not None and progress.step and progress.seconds + closing >= 60 * limits.max_minutes:
        kept = f", but for the {closing:.0f} s of the last validation" if closing >= 1 else ""
        return f"{limits.max_minutes:g} minutes are over{kept}"
    return None
