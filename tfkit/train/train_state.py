"""The state of training: everything that a step changes, and so the content of a checkpoint.

Random generators have no state to save: every batch seeds them by its position in the data (`batches.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from ..errors import Diagnostic, StoreError
from ..io.loading import check_tensors
from ..nn.model import Model
from ..recipe import Recipe
from .batches import TrainingBatches
from .callbacks import Progress
from .checkpoint import AVERAGE, MODEL, OPTIMISER, STATE, Tensors
from .checkpoint_state import Scaler, State
from .counters import impossible
from .distributed.ddp_fsdp import full_tensor, shard, shard_of
from .distributed.process_group import ProcessGroup
from .moving_average import MovingAverage
from .optimiser import optimiser_for, optimiser_tensors, restore_optimiser
from .parameter_rates import freeze

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""The dtype of autocast by `precision` of a recipe."""


class TrainState:
    """The weights, the optimiser, their moving average, the loss scale of float16, and the progress of the run.

    Args:
        model: The model to train. With `fsdp` its weights are sharded in place.
        recipe: Chooses the optimiser, the moving average and the precision.
        processes: The processes that train together.
        fsdp: Whether each process holds a shard of every weight instead of all weights.
    """

    def __init__(self, model: Model, recipe: Recipe, processes: ProcessGroup, fsdp: bool) -> None:
        self.model, self.fsdp, self.progress = model, fsdp, Progress()
        freeze(recipe, model)
        if fsdp:
            shard(model, processes, DTYPES.get(recipe.precision))
        self.optimiser = optimiser_for(recipe, model)
        self.average = MovingAverage(model, recipe.average) if recipe.average is not None else None
        device = next(model.parameters()).device.type
        self.scaler = torch.amp.GradScaler(device, enabled=recipe.precision == "float16")

    def tensors(self) -> dict[str, Tensors]:
        """All tensors by checkpoint file and name."""
        found: dict[str, Tensors] = {
            MODEL: dict(self.model.state_dict()),
            OPTIMISER: optimiser_tensors(self.optimiser, self._parameter_names()),
        }
        return found if self.average is None else {**found, AVERAGE: self.average.values}

    def scalars(self) -> dict[str, Any]:
        """The state without tensors, as JSON data."""
        return {
            "progress": self.progress.model_dump(),
            "scaler": self.scaler.state_dict(),
            "average_steps": None if self.average is None else self.average.step,
        }

    def _parameter_names(self) -> dict[int, str]:
        """The name of each parameter by its `id`."""
        return {id(parameter): name for name, parameter in self.model.named_parameters()}

    def check_tensors(self, directory: Path, tensors: Mapping[str, Tensors]) -> None:
        """Raises StoreError if the tensors of a checkpoint differ from this state in name, shape or dtype."""
        updated = {name.rpartition("/")[0] for name in tensors[OPTIMISER]}
        parameters = {name: each for name, each in self.model.named_parameters() if name in updated}
        moments = {f"{name}/{key}": each for name, each in parameters.items() for key in ("exp_avg", "exp_avg_sq")}
        steps = {f"{name}/step": torch.zeros((), device="meta") for name in parameters}
        for file, expected in {**self.tensors(), OPTIMISER: {**moments, **steps}}.items():
            check_tensors(directory / file, tensors.get(file, {}), expected, "this run")

    def check_scalars(self, directory: Path, state: State, tensors: Mapping[str, Tensors], batches: TrainingBatches) -> None:
        """Raises StoreError if the scalars of a checkpoint cannot be those of this run.

        Args:
            directory: The checkpoint, for the message.
            state: Its scalars.
            tensors: Its tensors.
            batches: The batches of the run.
        """
        presence = {
            "scaler": (isinstance(state.scaler, Scaler), self.scaler.is_enabled()),
            "average_steps": (state.average_steps is not None, self.average is not None),
        }
        diagnostics = [
            Diagnostic("TFK082", f"{directory / STATE}: `{name}` is {'not expected' if found else 'missing'}", "it was altered")
            for name, (found, expected) in presence.items()
            if found != expected
        ]
        epoch, batch = state.progress.epoch, state.progress.batch
        problems = (
            [f"`progress.batch` is {batch}, epoch {epoch} has {count}"] if batch >= (count := batches.count(epoch)) else []
        )
        problems += impossible(state, tensors[OPTIMISER], batches.rows, batches.tokens, batches.recipe.batching.accumulate)
        diagnostics += [Diagnostic("TFK082", f"{directory / STATE}: {each}", "it was altered") for each in problems]
        if diagnostics:
            raise StoreError(diagnostics)

    def restore(self, tensors: Mapping[str, Tensors], state: State) -> None:
        """Continue from a checkpoint.

        Tensors are copied into memory of torch's allocator, because the alignment of a mapped file may change how matrix
        products round.
        """
        own = self.model.state_dict()
        self.model.load_state_dict({name: shard_of(value, own[name]) for name, value in tensors[MODEL].items()})
        restore_optimiser(self.optimiser, self._parameter_names(), tensors[OPTIMISER])
        if isinstance(state.scaler, Scaler):
            self.scaler.load_state_dict(state.scaler.model_dump())
        if self.average is not None:
            for name, value in self.average.values.items():
                value.copy_(shard_of(tensors[AVERAGE][name], value))
            self.average.step = state.average_steps or 0
        self.progress = state.progress

    @contextmanager
    def evaluation_model(self, build: Callable[[], Model]) -> Iterator[Model]:
        """A context with the model to validate and save: with averaged weights if there are any, unsharded, in evaluation mode.

        It is the trained model itself, whose own weights are restored at the end; if they are sharded, it is a copy.

        Args:
            build: Builds another model of the same spec.
        """
        if not self.fsdp:
            with self.average.used_by(self.model) if self.average is not None else nullcontext():
                yield self.model.eval()
            return
        weights = {**self.model.state_dict(), **(self.average.values if self.average is not None else {})}
        copy = build()
        own = copy.state_dict()
        for name, value in weights.items():  # one at a time: all of them whole would be another copy of the model
            own[name].copy_(full_tensor(value))
        yield copy.eval()
