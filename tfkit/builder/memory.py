"""Storage for the parameters of a model: whether it fits, and its allocation."""

from __future__ import annotations

import os

import torch
from torch import nn

from ..errors import BuildError, Diagnostic
from ..graph import Graph
from ..nn.device_moves import device_here


def materialise(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Allocate every parameter, uninitialised. A shared module is allocated once.

    Args:
        model: a module on the meta device, changed in place.
        device: where the parameters are allocated.
        dtype: their dtype.
    """
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            storage = torch.empty(parameter.shape, device=device, dtype=dtype)
            module.register_parameter(name, nn.Parameter(storage, parameter.requires_grad))


def check_fits(graph: Graph, device: torch.device, dtype: torch.dtype) -> None:
    """Raises BuildError with both numbers when the parameters alone are larger than the device's memory."""
    needed = (graph.parameters() + graph.parameters(trainable=False)) * dtype.itemsize
    if device.type == "cpu":
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    elif device.type == "cuda":
        available = torch.cuda.get_device_properties(device_here(device)).total_memory
    else:
        return
    if needed > available:
        message = f"the parameters need {needed:,} bytes in {dtype}, but {device} has {available:,}"
        raise BuildError(Diagnostic("TFK045", message, "make the model smaller, choose a smaller dtype, or another device"))
