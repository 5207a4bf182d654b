"""Draw every parameter in place, by its role, each from a generator of its own."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..catalogue import Catalogue
from ..graph import Graph, Node
from ..nn.model import Model
from ..slots.init import Distribution, InitContext
from ..slots.options import Component
from ..slots.parameter import Parameter, ParameterGroup


def initialise(model: Model, graph: Graph, catalogue: Catalogue, seed: int) -> None:
    """Draw every parameter in place, by its role, each from a generator of its own."""
    tensors = dict(model.named_parameters())
    xavier = catalogue.find("init", "xavier")
    usual = Component(xavier, xavier.options())
    for node in graph.nodes.values():
        part = getattr(node.options, "init", None) or usual
        for group, parameter in _expanded(node):
            name = f"nodes.{node.name}.{parameter.name}"
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
    """Fill a parameter from a distribution, `gain` times its spread; the numbers do not depend on the device."""
    if drawn.kind == "constant":
        tensor.fill_(drawn.centre)
        return
    generator = torch.Generator("cpu").manual_seed(seed)
    here = tensor.device.type == "cpu" and tensor.dtype == torch.float32
    home = tensor if here else torch.empty(tensor.shape, dtype=torch.float32, device="cpu")
    spread = drawn.spread * gain
    if drawn.kind == "normal":
        home.normal_(drawn.centre, spread, generator=generator)
    elif drawn.kind == "uniform":
        home.uniform_(drawn.centre - spread, drawn.centre + spread, generator=generator)
    else:
        # The inverse of the normal distribution function, from uniform numbers within two standard deviations of the centre.
        inside = math.erf(math.sqrt(2.0))
        home.uniform_(-inside, inside, generator=generator).erfinv_().mul_(spread * math.sqrt(2.0)).add_(drawn.centre)
    if home is not tensor:
        tensor.copy_(home)
