"""Storage for the parameters of a model: whether it fits, and its allocation."""

from __future__ import annotations

import os

import torch
from torch import nn

from ..errors import BuildError
from ..graph import Batch, Graph, node_costs, total_elements
from ..nn.device_moves import device_here
from ..spec import ModelSpec


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


def check_fits(spec: ModelSpec, graph: Graph, device: torch.device, dtype: torch.dtype, batch: Batch | None = None) -> None:
    """Raises BuildError when the parameters, and the activations of a batch, need more memory than is free."""
    counts = {name: node.count() + node.count(trainable=False) for name, node in graph.nodes.items()}
    parameters = sum(counts.values()) * dtype.itemsize
    activations = 0 if batch is None else total_elements(node_costs(graph, batch)) * dtype.itemsize
    available = _available(device)
    if available is None or parameters + activations <= available:
        return
    what = f"the parameters need {parameters:,} bytes in {dtype}"
    if batch is not None:
        rows = ", ".join(f"{name} {length}" for name, length in batch.lengths.items())
        what += f", a forward pass of {batch.size} rows ({rows}) {activations:,} more"
    rule = f"{what}, and {device} has {available:,}"
    fix = "make the model smaller, choose a smaller dtype, or another device"
    raise BuildError(spec.diagnostic("TFK045", f"nodes.{max(counts, key=lambda name: counts[name])}", rule, fix))


def _available(device: torch.device) -> int | None:
    """The bytes that are free, where the system says so, or all bytes of the device; None if that is not known."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device_here(device)).total_memory
    if device.type != "cpu":
        return None
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return int(dict(line.split(":") for line in lines)["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
