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
from .loss import LossSums
from .train_state import TrainState


class Recorded(NamedTuple):
    """A recorded pass: `replay` reads `tensors` and `factor`, and leaves the summed losses (2,) in `sums`."""

    tensors: list[Tensor]
    factor: Tensor
    replay: Callable[[], object]
    sums: Tensor


class CapturedPasses:
    """The recorded passes of a model.

    Args:
        model: The model, whose parameters and backends stay.
        losses: The losses of a batch. They depend on its tensors alone.
        scale: Multiplies a loss before the backward pass, by a tensor that may change.
    """

    def __init__(self, model: Model, losses: Callable[[Batch], LossSums], scale: Callable[[Tensor], Tensor]) -> None:
        self.model, self.losses, self.scale = model, losses, scale
        self.passes: dict[tuple[torch.Size, ...], Recorded] = {}

    def backward(self, batch: Batch, factor: float, seed: int) -> LossSums:
        """Add `factor` times the gradient of the loss of a batch to the gradients. `seed` is that of its dropout.

        Raises:
            TrainingError: The pass cannot be recorded.
        """
        shapes = tuple(tensor.shape for tensor in batch.tensors())
        if shapes not in self.passes:
            self.passes[shapes] = self._record(batch)
        recorded = self.passes[shapes]
        for held, tensor in zip(recorded.tensors, batch.tensors(), strict=True):
            held.copy_(tensor)
        recorded.factor.fill_(factor)
        torch.manual_seed(seed)
        recorded.replay()
        loss, nll = recorded.sums.clone()  # the next replay overwrites them
        return LossSums(loss, nll)

    def _record(self, batch: Batch) -> Recorded:
        fixed = batch.mapped(torch.clone)
        factor = torch.ones((), device=self.model.device)

        def run() -> Tensor:
            with torch.enable_grad():
                loss, nll = self.losses(fixed)
                self.scale(loss * factor).backward()  # type: ignore[no-untyped-call]
            return torch.stack([loss.detach(), nll])

        before = [None if parameter.grad is None else parameter.grad.clone() for parameter in self.model.parameters()]
        statistics = [buffer.clone() for buffer in self.model.buffers()]
        try:
            replay, sums = step_graphs.cuda_graph(run)
        except TfkitError:
            raise
        except Exception as reason:  # of CUDA, or of a part that asks the device for a number
            words = " ".join(str(reason).split())[:300]
            message = f"the pass of a batch cannot be recorded as a CUDA graph: {type(reason).__name__}: {words}"
            raise TrainingError(Diagnostic("TFK063", message, "remove `cuda_graphs`")) from None
        for parameter, gradient in zip(self.model.parameters(), before, strict=True):
            if parameter.grad is not None:  # that of the runs before the recording
                parameter.grad.zero_() if gradient is None else parameter.grad.copy_(gradient)
        for buffer, statistic in zip(self.model.buffers(), statistics, strict=True):
            buffer.copy_(statistic)
        return Recorded(fixed.tensors(), factor, replay, sums)


class CapturedUpdate:
    """The recorded update of a step: the gradient is unscaled and clipped, the optimiser and the averages follow, and the
    gradient is zero again.

    What differs from step to step is in tensors: the losses, the learning rates, and the share of the weights in their average.
    If the loss or the norm of the gradient is not finite, the weights, the averages and the state of the optimiser stay.

    Args:
        state: What is updated. Its optimiser is a fused one, and has made an ordinary step before the first recorded one.
        clip: Unscales and clips the gradient; returns its norm before clipping.
    """

    def __init__(self, state: TrainState, clip: Callable[[], Tensor]) -> None:
        self.state, self.clip, device = state, clip, state.model.device
        for group in state.optimiser.param_groups:
            group["lr"] = torch.zeros((), device=device)
        self.sums, self.share = torch.zeros(2, device=device), torch.zeros((), device=device)
        self.recorded: tuple[Callable[[], object], Tensor] | None = None

    def __call__(self, sums: Tensor) -> Callable[[], list[float]]:
        """Update the weights of a step with these summed losses (2,).

        Returns:
            A function that waits for the update, and for nothing after it. It returns the summed losses, the norm of the
            gradient, and the loss scale of the step.
        """
        self.sums.copy_(sums)
        if self.state.average is not None:
            self.share.fill_(self.state.average.next_share())
        if self.recorded is None:
            for group in self.state.optimiser.param_groups:
                group["capturable"] = True
            self.recorded = step_graphs.cuda_graph(self._run, warm_up=0)
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


def check_captured(recipe: Recipe, device: torch.device, outputs: int, linked: bool, processes: int) -> None:
    """Raises InputError if the passes of a recipe with `cuda_graphs` cannot be recorded.

    Args:
        recipe: The recipe.
        device: The device of the model.
        outputs: The number of outputs with a loss.
        linked: Whether a head learns alignments.
        processes: The processes that train together.
    """
    reasons = {
        f"the model is on {device.type}, and CUDA graphs need a CUDA device": device.type != "cuda",
        f"{processes} processes train together, and one alone is recorded": processes > 1,
        f"the model has {outputs} losses, whose weights depend on the batch": outputs > 1,
        "the links of words have another number in each batch": linked,
        "`activation_checkpointing` asks for the state of the generator in a pass": recipe.activation_checkpointing,
    }
    if wrong := [reason for reason, holds in reasons.items() if holds]:
        raise InputError(recipe.diagnostic("TFK063", "cuda_graphs", "; ".join(wrong), "remove it"))
