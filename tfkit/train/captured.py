"""Training as CUDA graphs: the launches of a forward and backward pass are recorded once for every shape of a batch, those of
the update of the weights once, and both are replayed without Python.

What differs from batch to batch is in tensors: the batch, and the factor of its loss. Gradients are added in place to tensors
that stay. Dropout draws as in an ordinary pass, because a replay reads the generator of the device anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data import Batch
from ..errors import Diagnostic, InputError, TfkitError, TrainingError
from ..generate import step_graphs
from ..nn.model import Model
from ..recipe import Recipe
from .train_state import TrainState

MAX_PASSES = 8
"""The largest number of shapes of batches that are recorded, as many as `compile` and `cuda_graphs` make."""


class Recorded(NamedTuple):
    """A recorded pass: `replay` reads `tensors`, and leaves its result in `result`."""

    tensors: list[Tensor]
    replay: Callable[[], object]
    result: Tensor


class CapturedPasses:
    """The recorded passes of a model, one for each shape of a batch. Batches of more shapes than `MAX_PASSES` run as ordinary
    passes.

    The pass `run` of a batch depends on its tensors alone, and the parameters and backends of the model stay. `notices` gets
    why later batches are not recorded; if recording is `asked`, that is an error. All recordings share the memory `pool`, since
    they run one after another; that of other passes, or new memory by default.
    """

    def __init__(
        self, model: Model, run: Callable[[Batch], Tensor], notices: list[Diagnostic], asked: bool, pool: Any = None
    ) -> None:
        self.model, self.run, self.notices, self.asked = model, run, notices, asked
        self.passes: dict[tuple[torch.Size, ...], Recorded] = {}
        self.pool = torch.cuda.graph_pool_handle() if pool is None and model.device.type == "cuda" else pool
        self.recording = True

    def __call__(self, batch: Batch, seed: int = 0) -> Tensor:
        """The result of the pass of a batch. `seed` is that of its dropout. Raises TrainingError if the pass cannot be
        recorded."""
        shapes = tuple(tensor.shape for tensor in batch.tensors())
        if shapes not in self.passes and self.recording:
            self._record(shapes, batch)
        recorded = self.passes.get(shapes)
        torch.manual_seed(seed)
        if recorded is None:
            return self.run(batch)
        for held, tensor in zip(recorded.tensors, batch.tensors(), strict=True):
            held.copy_(tensor)
        recorded.replay()
        return recorded.result.clone()  # the next replay overwrites it

    def _record(self, shapes: tuple[torch.Size, ...], batch: Batch) -> None:
        if len(self.passes) == MAX_PASSES:
            message = f"{MAX_PASSES} shapes of batches are recorded as CUDA graphs, and there are more"
            self._stop(Diagnostic("TFK063", message, "batches of other shapes run as ordinary passes"))
            return
        fixed = batch.mapped(torch.clone)
        before = [None if parameter.grad is None else parameter.grad.clone() for parameter in self.model.parameters()]
        statistics = [buffer.clone() for buffer in self.model.buffers()]
        try:
            replay, result = _recorded("the pass of a batch", lambda: self.run(fixed), pool=self.pool)
            self.passes[shapes] = Recorded(fixed.tensors(), replay, result)
        except TrainingError as error:
            if self.asked:
                raise
            self._stop(*error.diagnostics)
        for parameter, gradient in zip(self.model.parameters(), before, strict=True):
            if parameter.grad is not None:  # that of the runs before the recording
                parameter.grad.zero_() if gradient is None else parameter.grad.copy_(gradient)
        for buffer, statistic in zip(self.model.buffers(), statistics, strict=True):
            buffer.copy_(statistic)

    def _stop(self, *reasons: Diagnostic) -> None:
        self.recording = False
        self.notices += reasons


def _recorded(what: str, run: Callable[[], Tensor], **options: Any) -> tuple[Callable[[], object], Tensor]:
    """`step_graphs.cuda_graph`. Raises TrainingError if that fails."""
    try:
        return step_graphs.cuda_graph(run, **options)
    except TfkitError:
        raise
    except Exception as reason:  # of CUDA, or of a part that asks the device for a number
        words = " ".join(str(reason).split())[:300]
        message = f"{what} cannot be recorded as a CUDA graph: {type(reason).__name__}: {words}"
        raise TrainingError(Diagnostic("TFK063", message, "write `cuda_graphs: false`")) from None


class CapturedUpdate:
    """The recorded update of a step: the gradient is unscaled and clipped, the optimiser and the averages follow, and the
    gradient is zero again.

    What differs from step to step is in tensors: the losses, the learning rates, and the share of the weights in their average.
    If the loss or the norm of the gradient is not finite, the weights, the averages and the state of the optimiser stay. The
    optimiser is a fused one, and has made an ordinary step before. `clip` unscales and clips the gradient; it returns its norm
    before clipping.
    """

    def __init__(self, state: TrainState, clip: Callable[[], Tensor]) -> None:
        self.state, self.clip, device = state, clip, state.model.device
        for group in state.optimiser.param_groups:
            group["lr"] = torch.zeros((), device=device)
        self.sums, self.share = torch.zeros(2, device=device), torch.zeros((), device=device)
        self.recorded: tuple[Callable[[], object], Tensor] | None = None

    def record(self) -> None:
        """Record the update, if it is not. Raises TrainingError."""
        if self.recorded is None:
            for group in self.state.optimiser.param_groups:
                group["capturable"] = True  # torch asks for it while it records
            self.recorded = _recorded("the update of the weights", self._run, warm_up=0)

    def __call__(self, sums: Tensor) -> Callable[[], list[float]]:
        """Update the weights of a step with these summed losses (2,). Returns a function that waits for the update, and for
        nothing after it, and gives the summed losses, the norm of the gradient, and the loss scale of the step."""
        self.sums.copy_(sums)
        if self.state.average is not None:
            self.share.fill_(self.state.average.next_share())
        assert self.recorded is not None, "it is recorded"
        replay, numbers = self.recorded
        replay()
        copy = numbers.to("cpu", non_blocking=True, copy=True)
        event = torch.cuda.Event() if numbers.is_cuda else None  # type: ignore[no-untyped-call]
        if event is not None:
            event.record()

        def read() -> list[float]:
            if event is not None:
                event.synchronize()
            return copy.tolist()

        return read

    @torch.no_grad()
    def _run(self) -> Tensor:
        optimiser: Any = self.state.optimiser
        scale = self.state.scaler.scale(torch.ones((), device=self.sums.device))
        norm = self.clip()
        finite = (norm + self.sums[0]).isfinite()
        optimiser.found_inf = (~finite).float()  # a fused optimiser does nothing if it is 1
        optimiser.step()
        del optimiser.found_inf
        self.state.scaler.update()
        if self.state.average is not None:
            self.state.average.update(self.state.model, self.share * finite)
        optimiser.zero_grad(set_to_none=False)
        return torch.stack([*self.sums, norm, scale])


def check_captured(
    recipe: Recipe, device: torch.device, outputs: int, linked: bool, processes: int
) -> tuple[bool, list[Diagnostic]]:
    """Whether the steps of a run are recorded, and why not if the recipe leaves it open: with `cuda_graphs: true`, and with
    `compile` on a CUDA device unless the recipe says otherwise. `outputs` is the number of outputs with a loss; `linked`: a
    head learns alignments. Raises InputError if the recipe has `cuda_graphs: true` and they cannot be."""
    if not recipe.cuda_graphs and (recipe.cuda_graphs is False or not recipe.compile or device.type != "cuda"):
        return False, []
    reasons = {
        f"the model is on {device.type}, and CUDA graphs need a CUDA device": device.type != "cuda",
        f"{processes} processes train together, and one alone is recorded": processes > 1,
        f"the model has {outputs} losses, whose weights depend on the batch": outputs > 1,
        "the links of words have another number in each batch": linked,
        "`activation_checkpointing` asks for the state of the generator in a pass": recipe.activation_checkpointing,
    }
    wrong = "; ".join(reason for reason, holds in reasons.items() if holds)
    if wrong and recipe.cuda_graphs:
        raise InputError(recipe.diagnostic("TFK063", "cuda_graphs", wrong, "remove it"))
    notice = Diagnostic("TFK063", f"steps are not recorded as CUDA graphs: {wrong}", "they run as ordinary ones")
    return not wrong, [notice] if wrong else []
