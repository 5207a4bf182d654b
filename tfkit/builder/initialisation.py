"""The parameters of a model: whether they fit, their allocation, and their initial values."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Container, Iterator

import torch
from torch import Tensor, nn

from ..catalogue import Catalogue
from ..errors import BuildError, Diagnostic
from ..graph import Graph, Node
from ..nn.device_moves import device_here
from ..nn.model import Model
from ..slots.init import Distribution, InitContext
from ..slots.options import Component
from ..slots.parameter import Parameter, ParameterGroup


def materialise(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Allocate every parameter, uninitialised. A shared module is allocated once.

    Args:
        model: a module on the meta device, changed in place.
        device: where the parameters are allocated.
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


def initialise(model: Model, graph: Graph, catalogue: Catalogue, seed: int, only: Container[str] | None = None) -> None:
    """Draw every parameter in place, or `only` those of these names. The generator of a parameter is seeded by `seed` and the
    parameter's name."""
    tensors = dict(model.named_parameters())
    xavier = catalogue.find("init", "xavier")
    default = Component(xavier, xavier.options())
    for node in graph.nodes.values():
        part = getattr(node.options, "init", None) or default
        for group, parameter in _expanded(node):
            name = f"nodes.{node.name}.{parameter.name}"
            if only is not None and name not in only:
                continue
            context = InitContext(_width(node), _depth(node), group.head_dim)
            drawn = part.entry.draw(part.options, parameter, context)
            digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            fill(tensors[name], drawn, group.gains.get(parameter.role, 1.0), int.from_bytes(digest[:8], "little"))


def _width(node: Node) -> int:
    signal = next(iter(node.context.signals.values()), node.signal)
    return signal.width


def _depth(node: Node) -> int:
    return node.context.stack.num_layers if node.context.stack else 0


def _expanded(node: Node) -> Iterator[tuple[ParameterGroup, Parameter]]:
    for group in node.parameter_groups():
        for parameter in group.expanded():
            yield group, parameter


@torch.no_grad()
def fill(tensor: Tensor, drawn: Distribution, gain: float, seed: int) -> None:
    """Fill a parameter from a distribution whose spread is multiplied by `gain`. The values do not depend on the device."""
    if drawn.kind == "constant":
        tensor.fill_(drawn.centre)
        return
    generator = torch.Generator("cpu").manual_seed(seed)
    in_place = tensor.device.type == "cpu" and tensor.dtype == torch.float32
    values = tensor if in_place else torch.empty(tensor.shape, dtype=torch.float32, device="cpu")
    spread = drawn.spread * gain
    if drawn.kind == "normal":
        values.normal_(drawn.centre, spread, generator=generator)
    elif drawn.kind == "uniform":
        values.uniform_(drawn.centre - spread, drawn.centre + spread, generator=generator)
    elif drawn.kind == "orthogonal":
        for block in torch.split(values, values.shape[1]):
            torch.nn.init.orthogonal_(block, spread, generator=generator)
    else:
        # Normal, truncated at two standard deviations: the inverse normal distribution function of uniform numbers.
        limit = math.erf(math.sqrt(2.0))
        values.uniform_(-limit, limit, generator=generator).erfinv_().mul_(spread * math.sqrt(2.0)).add_(drawn.centre)
    if values is not tensor:
        tensor.copy_(values)
