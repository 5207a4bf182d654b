"""The state of training: everything that a step changes, and so the content of a checkpoint.

Random generators have no state to save: every batch seeds them by its position in the data (`batches.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Diagnostic, StoreError
from ..io.loading import check_tensors
from ..nn.model import Model
from ..recipe import Recipe
from .batches import TrainingBatches
from .callbacks import Progress
from .checkpoint import AVERAGE, MODEL, OPTIMISER, STATE, Tensors
from .checkpoint_state import Scaler, State
from .counters import impossible, impossible_scale
from .distributed.ddp_fsdp import full_tensor, own_part, shard, shard_of
from .distributed.process_group import ProcessGroup
from .optimiser import MOMENTS, freeze, optimiser_for, optimiser_tensors, restore_optimiser

SQUARES = ("exp_avg_sq", "square_avg", "acc_delta")
"""The tensors of an optimiser that are means of squares."""
PACKAGES = ("tfkit", "torch", "peft")
"""The packages of modules all of whose parameters take part in every step."""


# torch.optim.swa_utils.AveragedModel would need `avg_fn` for this decay; its first update copies the weights (d_1 = 0 instead
# of 2/11), and it deep-copies the module, which FSDP2 refuses.
class MovingAverage:
    """The exponential moving average of the weights. It often translates better than the weights themselves.

    a_n = d_n a_{n-1} + (1 - d_n) w_n        d_n = min(decay, (1 + n) / (10 + n)): a small decay removes the first weights soon

    The averages of all parameters and buffers by name, or of the parameters alone that are not `frozen`; `step` counts the
    updates.
    """

    def __init__(self, model: nn.Module, decay: float, frozen: bool = True) -> None:
        self.decay = decay
        self.step = 0
        self.values: dict[str, Tensor] = {
            name: tensor.detach().clone() for name, tensor in _tensors(model).items() if frozen or tensor.requires_grad
        }

    def next_share(self) -> float:
        """Count one more update; returns 1 - d_n, the share of the weights in it."""
        self.step += 1
        return 1 - min(self.decay, (1 + self.step) / (10 + self.step))

    @torch.no_grad()
    def update(self, model: nn.Module, share: float | Tensor) -> None:
        """Include the weights after a step, by their share."""
        weights = [tensor.detach() for name, tensor in _tensors(model).items() if name in self.values]
        shares: Any = [share] * len(weights) if isinstance(share, Tensor) else share
        torch._foreach_lerp_(list(self.values.values()), weights, shares)

    @contextmanager
    def used_by(self, model: nn.Module) -> Iterator[None]:
        """A context in which the model has the averages as its weights."""
        tensors = _tensors(model)
        weights = {name: tensors[name].detach().clone() for name in self.values}
        self._assign(model, self.values)
        try:
            yield
        finally:
            self._assign(model, weights)

    @torch.no_grad()
    def _assign(self, model: nn.Module, values: dict[str, Tensor]) -> None:
        tensors = _tensors(model)
        for name, value in values.items():
            tensors[name].copy_(value)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""The dtype of autocast by `precision` of a recipe."""


class TrainState:
    """The weights, the optimiser, their moving average, the loss scale of float16, and the progress of the run. With `fsdp` the
    weights of the model are sharded in place."""

    def __init__(self, model: Model, recipe: Recipe, processes: ProcessGroup, fsdp: bool) -> None:
        self.model, self.fsdp, self.progress = model, fsdp, Progress()
        freeze(recipe, model)
        if fsdp:
            shard(model, processes, DTYPES.get(recipe.precision))
        self.optimiser = optimiser_for(recipe, model)
        self.adapted = recipe.lora is not None
        """Whether only adapters are trained, and saved: the other weights are those of the pretrained model."""
        average = recipe.average
        self.average = None if average is None else MovingAverage(model, average, frozen=not self.adapted)
        device = next(model.parameters()).device.type
        self.scaler = torch.amp.GradScaler(device, enabled=recipe.precision == "float16")

    def tensors(self) -> dict[str, Tensors]:
        """All tensors by checkpoint file and name."""
        tensors: dict[str, Tensors] = {
            MODEL: self._trained_weights() if self.adapted else dict(self.model.state_dict()),
            OPTIMISER: optimiser_tensors(self.optimiser, self._parameter_names()),
        }
        return tensors if self.average is None else {**tensors, AVERAGE: self.average.values}

    def _trained_weights(self) -> Tensors:
        """The weights that are not those of the pretrained model."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters() if parameter.requires_grad}

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
        parameters = {name: parameter for name, parameter in self.model.named_parameters() if name in updated}
        keys = MOMENTS[type(self.optimiser)]
        moments = {f"{name}/{key}": parameter for name, parameter in parameters.items() for key in keys}
        counts = not isinstance(self.optimiser, torch.optim.SGD)
        steps = {f"{name}/step": torch.zeros((), device="meta") for name in parameters if counts}
        for file, expected in {**self.tensors(), OPTIMISER: {**moments, **steps}}.items():
            check_tensors(directory / file, tensors.get(file, {}), expected, "this run")
        for name, value in tensors[OPTIMISER].items():
            part = own_part(value)
            if name.endswith(SQUARES) and part.numel() and (least := float(part.min())) < 0:
                message = f"{directory / OPTIMISER}: `{name}` has {least:g}, and a mean of squares is at least 0"
                raise StoreError(Diagnostic("TFK082", message, "it was altered"))

    def check_scalars(self, directory: Path, state: State, tensors: Mapping[str, Tensors], batches: TrainingBatches) -> None:
        """Raises StoreError if the scalars of a checkpoint cannot be those of this run."""
        presence = {
            "scaler": (isinstance(state.scaler, Scaler), self.scaler.is_enabled()),
            "average_steps": (state.average_steps is not None, self.average is not None),
        }
        diagnostics = [
            Diagnostic(
                "TFK082", f"{directory / STATE}: `{name}` is {'not expected' if present else 'missing'}", "it was altered"
            )
            for name, (present, expected) in presence.items()
            if present != expected
        ]
        always = all(type(module).__module__.partition(".")[0] in PACKAGES for module in self.model.modules())
        problems = list(impossible(state, tensors[OPTIMISER], batches, always))
        if isinstance(state.scaler, Scaler) and self.scaler.is_enabled():
            problems += impossible_scale(state.scaler, self.scaler.state_dict(), state.progress.step)
        diagnostics += [Diagnostic("TFK082", f"{directory / STATE}: {problem}", "it was altered") for problem in problems]
        if diagnostics:
            raise StoreError(diagnostics)

    def restore(self, tensors: Mapping[str, Tensors], state: State) -> None:
        """Continue from a checkpoint.

        Tensors are copied into memory of torch's allocator, because the alignment of a mapped file may change how matrix
        products round.
        """
        weights = self.model.state_dict()
        weights |= {name: shard_of(value, weights[name]) for name, value in tensors[MODEL].items()}
        self.model.load_state_dict(weights)
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
        It is the trained model itself, whose own weights are restored at the end; if they are sharded, it is a copy, which
        `build` makes."""
        if not self.fsdp:
            with self.average.used_by(self.model) if self.average is not None else nullcontext():
                yield self.model.eval()
            return
        weights = {**self.model.state_dict(), **(self.average.values if self.average is not None else {})}
        copy = build()
        copy_weights = copy.state_dict()
        for name, value in weights.items():  # one at a time: all of them whole would be another copy of the model
            copy_weights[name].copy_(full_tensor(value))
        yield copy.eval()
