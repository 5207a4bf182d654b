"""Training through `torch.compile`: the model's forward and backward pass, compiled once for every shape of batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ..data import Batch, Epoch, Shapes, Task
from ..errors import Diagnostic, TrainingError
from ..nn.model import Model

ACCUMULATED = 2**16
"""Compilations of models in one process that torch may remember; it gives up at 256 unasked, whatever model they were of."""


class Alone(nn.Module):
    """A model whose forward pass has code of its own: torch counts compilations by code, whatever model they were of."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.forward = MethodType(FunctionType(_forward.__code__.replace(), globals()), self)


def _forward(alone: Alone, **given: Any) -> Any:
    return alone.model(**given)


class Compiled:
    """A model that is compiled for batches of these shapes, and for no others. It has the weights of the model, which itself
    stays what it was: what validates, saves and translates knows nothing of compilers."""

    def __init__(self, model: Model, shapes: Shapes, task: Task) -> None:
        self.shapes, self.task = shapes, task
        # A graph of sizes that vary would depend on which batch came first, and a run that goes on begins with another.
        self.model: nn.Module = torch.compile(Alone(model), dynamic=False, fullgraph=True)  # type: ignore[assignment]

    def epoch(self, seed: int, number: int) -> Epoch:
        return self.shapes.epoch(seed, number)

    def filled(self, batch: Batch, rows: list[int]) -> Batch:
        return self.shapes.filled(batch, rows, self.task)

    @contextmanager
    def marked_dynamic(self, batch: Batch) -> Iterator[None]:
        """Call the model in here. Raises TrainingError where it cannot be compiled for a batch."""
        limits: dict[str, Any] = {"recompile_limit": len(self.shapes), "accumulated_recompile_limit": ACCUMULATED}
        try:
            with torch._dynamo.config.patch(limits):
                yield
        except (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit) as reason:
            shapes = ", ".join(f"{name} {tuple(ids.shape)}" for name, ids in batch.inputs.items())
            raise TrainingError(_diagnostic(f"the model cannot be compiled for a batch of {shapes}", reason)) from None


def check_compiler(device: torch.device) -> None:
    """Compile something small, so that what is missing is told before the work. Raises TrainingError."""
    try:
        one = torch.ones(64, device=device, requires_grad=True)
        torch.compile(_small, dynamic=False, fullgraph=True)(one).sum().backward()  # type: ignore[no-untyped-call]
    except Exception as reason:  # whatever a compiler, its headers or its cache can raise
        raise TrainingError(
            _diagnostic(f"`compile: true`, but nothing can be compiled for {device.type} here", reason)
        ) from None


def _small(x: Tensor) -> Tensor:
    return x.sin() + 1


def _diagnostic(message: str, reason: Exception) -> Diagnostic:
    words = [line.strip() for line in str(reason).splitlines() if line.strip()]
    fix = "install a C++ compiler and Python's headers (g++, python3-dev), on CUDA Triton; or leave `compile` out"
    return Diagnostic("TFK120", f"{message}: {words[0] if words else type(reason).__name__}", fix)
