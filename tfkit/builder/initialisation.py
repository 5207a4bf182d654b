"""The parameters of a model: whether they fit, their allocation, and their initial values."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ..catalogue import Catalogue
from ..errors import BuildError
from ..graph import Batch, Graph, Node, node_costs, total_elements
from ..nn.device_moves import device_here
from ..nn.model import Model
from ..slots.init import Distribution, InitContext
from ..slots.options import Component
from ..slots.parameter import Parameter, ParameterGroup
from ..spec import ModelSpec


def materialise(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Allocate every parameter and buffer, uninitialised. A shared module is allocated once.

    Args:
        model: a module on the meta device, changed in place.
        device: where the parameters are allocated.
    """
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            storage = torch.empty(parameter.shape, device=device, dtype=dtype)
            module.register_parameter(name, nn.Parameter(storage, parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, device=device, dtype=dtype))


def check_fits(spec: ModelSpec, graph: Graph, device: torch.device, dtype: torch.dtype, batch: Batch | None = None) -> None:
    """Raises BuildError when the parameters, and the activations of a batch, need more memory than is free."""
    counts = {name: node.count() + node.count(trainable=False) for name, node in graph.nodes.items()}
    parameters = sum(counts.values()) * dtype.itemsize
    activations = 0 if batch is None else total_elements(node_costs(graph, batch)) * dtype.itemsize
    available = available_memory(device)
    if available is None or parameters + activations <= available:
        return
    what = f"the parameters need {parameters:,} bytes in {dtype}"
    if batch is not None:
        rows = ", ".join(f"{name} {length}" for name, length in batch.lengths.items())
        what += f", a forward pass of {batch.size} rows ({rows}) {activations:,} more"
    rule = f"{what}, and {device} has {available:,} {'free' if device.type == 'cpu' else 'in all'}"
    fix = "make the model smaller, choose a smaller dtype, or another device"
    raise BuildError(spec.diagnostic("TFK045", f"nodes.{max(counts, key=lambda name: counts[name])}", rule, fix))


def available_memory(device: torch.device) -> int | None:
    """The free bytes of the CPU, all bytes of a GPU, None for other devices.

    Only Linux says what is free; else it is all. `ulimit -v` may allow a process less.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device_here(device)).total_memory
    if device.type != "cpu":
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            free = int(dict(line.split(":") for line in lines)["MemAvailable"].split()[0]) << 10
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * page
    except (OSError, KeyError):
        return page * os.sysconf("SC_PHYS_PAGES")
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return free if limit == resource.RLIM_INFINITY else min(free, max(0, limit - used))


def initialise(model: Model, graph: Graph, catalogue: Catalogue, seed: int, only: Container[str] | None = None) -> None:
    """Draw every parameter and buffer in place, or `only` those of these names. The generator of each is seeded by `seed` and
    its name."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    xavier = catalogue.find("init", "xavier")
    default = Component(xavier, xavier.options())
    for node in graph.nodes.values():
        part = getattr(node.options, "init", None) or default
        shapes = {parameter.name: parameter.shape for _, parameter in _expanded(node)}
        for group, parameter in _expanded(node):
            name = f"nodes.{node.name}.{parameter.name}"
            if only is not None and name not in only:
                continue
            context = InitContext(_width(node), _depth(node), group.head_dim, _fan_in(parameter.name, shapes))
            drawn = part.entry.draw(part.options, parameter, context)
            digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            fill(tensors[name], drawn, group.gains.get(parameter.role, 1.0), int.from_bytes(digest[:8], "little"))


def _fan_in(name: str, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """`InitContext.fan_in` of a parameter among those of its node."""
    module = re.sub(r"\.(bias|bias_ih|bias_hh|weights_ih\.\d+)$", "", name)
    shape = shapes.get(f"{module}.weight_hh") or shapes.get(f"{module}.weight") or (0,)
    return math.prod(shape[1:]) if len(shape) > 1 else 0


def _width(node: Node) -> int:
    signal = next(iter(node.context.signals.values()), node.signal)
    return signal.width


def _depth(node: Node) -> int:
    return node.context.stack.num_layers if node.context.stack else 0


def _expanded(node: Node) -> Iterator[tuple[ParameterGroup, Parameter]]:
    for group in node.parameter_groups:
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
