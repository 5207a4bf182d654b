"""The position schemes of a spec as built modules: no other weight of the model is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.positions import PositionRange
from ..catalogue import Catalogue
from ..errors import BuildError, Diagnostic, InputError
from ..graph import Graph, Node, check_sublayers, graph_of
from ..nn.model import Model
from ..nn.position_values import PositionValues, bias_by_distance, embedded, rotated
from ..nn.stack import Stack
from ..slots.layer import sequence
from ..slots.options import Component
from ..spec import ModelSpec
from .assemble import build
from .initialisation import available_memory, initialise, materialise

MAX_SCHEMES = 200
"""Each takes a twentieth of a second to evaluate."""
MAX_ROWS = 4_096
"""Positions of an image. Each is compared with each."""
MAX_HEADS = 256
"""Each has a curve of its own."""
MAX_NUMBERS = 2**24
"""Numbers of the largest tensor of an evaluation: a scheme of this size takes 350 MB."""

ReadWeight = Callable[[str], Tensor]
"""Reads a weight of a saved model by name."""


def position_values(
    spec: ModelSpec, catalogue: Catalogue, positions: int, read: ReadWeight | None = None
) -> list[PositionValues]:
    """The values of every position scheme of a spec. Equal schemes without weights are one entry, with all their names.

    Args:
        catalogue: the entries that its names refer to.
        positions: the largest number of positions. A table that ends earlier, or an image, has its own number.
        read: reads the weights of a saved model; None: the weights that `build` initialises with seed 0.

    Returns:
        One entry for each scheme and place.

    Raises:
        SpecError: the model has too many sub-layers.
        InputError: it has more than `MAX_SCHEMES` schemes, or one has more than `MAX_ROWS` positions of an image, `MAX_HEADS`
            heads or `MAX_NUMBERS` numbers.
    """
    graph = graph_of(spec)
    check_sublayers(spec, graph)
    model = build(spec, catalogue, device="meta")
    uses = [*_in_nodes(graph, model), *_in_attention(graph, model)]
    if len(uses) > MAX_SCHEMES:
        message = f"`{spec.name}` has {len(uses):,} position schemes, and at most {MAX_SCHEMES} are evaluated"
        raise InputError(Diagnostic("TFK045", message, "use fewer layers that have schemes of their own"))
    distinct: dict[Any, PositionValues] = {}
    with torch.no_grad():
        for name, path, component, module, evaluate in uses:
            _fill(path, module, model, graph, catalogue, read)
            weights = any(True for _ in module.parameters())
            for values in evaluate(name, positions):
                key = (values.kind, values.place, repr(component.options), values.table.shape, values.first, weights and name)
                other = distinct.get(key)
                same = other is not None and torch.equal(other.table, values.table)
                distinct[key if same or other is None else (key, name)] = (
                    replace(values, name=f"{other.name}, {name}") if same and other else values
                )
    return list(distinct.values())


Evaluate = Callable[[str, int], Iterator[PositionValues]]
Use = tuple[str, str, Component, Any, Evaluate]
"""The name of a scheme, its path in the model, its component, its module, and what evaluates it."""


def _in_nodes(graph: Graph, model: Model) -> Iterator[Use]:
    """The schemes that act on embeddings, or are added to the input of every layer."""
    for name, node in graph.nodes.items():
        component = getattr(node.options, "position", None)
        if isinstance(component, Component) and "embeddings" in component.entry.acts:
            module = model.nodes[name].get_submodule("position")
            yield name, f"nodes.{name}.position", component, module, _of_embeddings(node, component, module)
        stack = model.nodes[name]
        if isinstance(stack, Stack):
            layers = [layer for _, layer in sequence(node.options.layers)]
            for number in sorted({scheme for scheme in stack.added if scheme is not None}):
                component, module = layers[stack.added.index(number)].position, stack.positions[number]
                text = name if number == 0 else f"{name} (scheme {number})"
                yield text, f"nodes.{name}.positions.{number}", component, module, _of_embeddings(node, component, module)


def _of_embeddings(node: Node, component: Component, module: Any) -> Evaluate:
    def evaluate(name: str, positions: int) -> Iterator[PositionValues]:
        site = getattr(node.options, "site", None)
        length = site.rows if site is not None and site.rows else min([positions, *_limits(node, component)])
        _check(name, length, MAX_ROWS, "positions", "use larger patches, or a smaller image")
        width = getattr(node.options, "d_model", node.signal.width)
        _check_numbers(name, length, node.signal.width)
        call = PositionRange(
            length, length, 0, 0, torch.device("cpu"), torch.float32, grid=site.grid if site is not None else None
        )
        table, similarity = embedded(module, width, node.signal.width - width, call)
        yield PositionValues(name, component.kind, "embeddings", _learned(module), table, similarity)

    return evaluate


def _limits(node: Node, component: Component) -> Iterator[int]:
    """The numbers of positions that the scheme and the input allow."""
    longest = component.entry.max_len(component.options)
    if longest is not None:
        yield longest
    if isinstance(node.signal.length, int):
        yield node.signal.length


def _in_attention(graph: Graph, model: Model) -> Iterator[Use]:
    """The schemes that act inside attention: that of a stack once, those of single layers one by one."""
    sites, seen = dict(graph.sites()), set()
    for use in model.attention_sites():
        config = use.attention.position_config
        if config is None:
            continue
        node, _, rest = use.site.partition(".")
        index, _, sublayer = rest.partition(".")
        path = f"nodes.{node}.positions.{config.scheme}"
        name = node
        module = use.attention.position
        if config.scheme is not None:
            module = model.nodes[node].get_submodule(f"positions.{config.scheme}")
            name = node if config.scheme == 0 else f"{node} (scheme {config.scheme})"
        else:
            path = next(f"{path}.position" for path, submodule in model.named_modules() if submodule is use.attention)
            name = use.site
        if id(module) in seen:
            continue
        seen.add(id(module))
        component = _component(graph.nodes[node], int(index), sublayer)
        yield name, path, component, module, _of_attention(use.attention.config.scale, sites[use.site], component, module)


def _component(node: Node, index: int, sublayer: str) -> Component:
    """The scheme of a site: that of a cross-attention itself, or that of its layer."""
    layer = next(layer for at, (_, layer) in enumerate(sequence(node.options.layers)) if at == index)
    part = next(part for part in layer.sublayers or () if part.options.name == sublayer)
    return getattr(part.options, "position", None) or layer.position


def _of_attention(scale: float, site: Any, component: Component, module: Any) -> Evaluate:
    def evaluate(name: str, positions: int) -> Iterator[PositionValues]:
        length = min(positions, component.entry.max_len(component.options) or positions)
        call = PositionRange(length, length, 0, 0, torch.device("cpu"), torch.float32)
        if "queries_keys" in component.entry.acts:
            _check_numbers(name, length, site.head_dim**2)  # each feature is rotated alone
            angles, similarity = rotated(module, site.head_dim, call)
            yield PositionValues(name, component.kind, "queries_keys", _learned(module), angles, similarity)
        if "scores" in component.entry.acts:
            _check(name, site.heads, MAX_HEADS, "heads", "use fewer heads")
            _check_numbers(name, length, site.heads * length)
            causal = "causal" in site.mask_terms
            bias = bias_by_distance(module, site.heads, site.head_dim, scale, causal, call)
            yield PositionValues(name, component.kind, "scores", _learned(module), bias, None, first=1 - length)

    return evaluate


def _check(name: str, number: int, most: int, what: str, fix: str) -> None:
    if number > most:
        message = f"the position scheme of `{name}` has {number:,} {what}, and at most {most:,} are evaluated"
        raise InputError(Diagnostic("TFK045", message, fix))


def _check_numbers(name: str, length: int, width: int) -> None:
    if length * width > MAX_NUMBERS:
        message = (
            f"the position scheme of `{name}` has {length:,} x {width:,} numbers, and at most {MAX_NUMBERS:,} are evaluated"
        )
        raise InputError(Diagnostic("TFK045", message, "ask for fewer positions"))


def _learned(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _fill(path: str, module: nn.Module, model: Model, graph: Graph, catalogue: Catalogue, read: ReadWeight | None) -> None:
    """Allocate the weights of one module, and initialise or read them."""
    names = {f"{path}.{name}" for name, _ in module.named_parameters()}
    cpu = torch.device("cpu")
    needed = sum(parameter.numel() for parameter in module.parameters()) * torch.float32.itemsize
    available = available_memory(cpu)
    if available is not None and needed > available:
        message = f"`{path}` needs {needed:,} bytes, and cpu has {available:,} free"
        raise BuildError(Diagnostic("TFK045", message, "write a smaller `max_len`"))
    materialise(module, cpu, torch.float32)
    if read is None:
        initialise(model, graph, catalogue, 0, names)
        return
    for name, parameter in module.named_parameters():
        parameter.copy_(read(f"{path}.{name}"))
