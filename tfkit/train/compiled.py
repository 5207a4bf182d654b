"""Training with `torch.compile`: forward and backward pass of a model, compiled once for every batch shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ..data import Batch
from ..errors import Diagnostic, TrainingError
from ..nn.model import Model

MAX_COMPILATIONS = 2**16
"""Compilations in one process that torch may cache. Its own limit is 256, summed over all models."""


class OwnCode(nn.Module):
    """A model whose forward method has its own code object. torch counts recompilations by code object, so two models with one
    code object would share a limit."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.forward = MethodType(FunctionType(_forward.__code__.replace(), globals()), self)


def _forward(self: OwnCode, **inputs: Any) -> Any:
    return self.model(**inputs)


class CompiledModel:
    """A compiled `module` that shares the weights of a model. The model itself is unchanged, so that validation, saving and
    decoding never involve the compiler. More than `max_shapes` shapes of a batch raise TrainingError."""

    def __init__(self, model: Model, max_shapes: int) -> None:
        self.max_shapes = max_shapes
        # With dynamic shapes the graph would depend on the first batch, and a resumed run starts with another batch.
        self.module: nn.Module = torch.compile(OwnCode(model), dynamic=False, fullgraph=True)  # type: ignore[assignment]

    @contextmanager
    def compiling(self, batch: Batch) -> Iterator[None]:
        """The context to call `module` in. Raises TrainingError if it cannot be compiled for a batch."""
        limits: dict[str, Any] = {"recompile_limit": self.max_shapes, "accumulated_recompile_limit": MAX_COMPILATIONS}
        try:
            with torch._dynamo.config.patch(limits):
                yield
        except (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit) as reason:
            shapes = ", ".join(f"{name} {tuple(ids.shape)}" for name, ids in batch.inputs.items())
            raise TrainingError(_diagnostic(f"the model cannot be compiled for a batch of {shapes}", reason)) from None


def check_compiler(device: torch.device) -> None:
    """Compile a small function, so that a missing compiler is reported before the data are prepared. Raises TrainingError."""
    try:
        x = torch.ones(64, device=device, requires_grad=True)
        torch.compile(_small, dynamic=False, fullgraph=True)(x).sum().backward()  # type: ignore[no-untyped-call]
    except Exception as reason:  # compilers, headers and caches raise any exception
        raise TrainingError(_diagnostic(f"`compile: true`, but torch.compile fails on {device.type}", reason)) from None


def _small(x: Tensor) -> Tensor:
    return x.sin() + 1


def _diagnostic(message: str, reason: Exception) -> Diagnostic:
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
    fix = "install a C++ compiler and Python's headers (g++, python3-dev), on CUDA Triton; or remove `compile`"
    return Diagnostic("TFK120", f"{message}: {lines[0] if lines else type(reason).__name__}", fix)
