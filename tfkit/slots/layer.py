"""The layer pattern of a stack in the resolved spec: groups of layers that repeat.

layers: [{repeat: 6}]                                    six equal layers
layers: [{repeat: 21, layers: [{...window}, {...}]}]      forty-two, two kinds in turn
layers: [{repeat: 12, shared: true}]                      one set of weights, applied twelve times
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from .options import AsTuple, Component, Options, Probability, Size, SlotField, component_default


class Layer(Options):
    """A group of layers in the pattern of a stack: one layer, or the nested `layers`, `repeat` times.

    Args:
        repeat: number of repetitions.
        shared: all repetitions share one set of weights.
        layers: a nested pattern; None for a single layer.
        placement: norm placement of the layer.
        position: position scheme of its self-attention; one that acts on embeddings is added to the input of the layer.
        dropout: dropout of the outputs of its sub-layers.
        sublayers: the sub-layers, in order.
    """

    repeat: Size = 1
    shared: bool = False
    layers: Annotated[tuple[Layer, ...] | None, Field(min_length=1), AsTuple] = None
    placement: Annotated[Component | None, SlotField("placement")] = None
    norm: Annotated[Component, SlotField("norm")] = component_default("none")
    position: Annotated[Component, SlotField("position")] = component_default("none")
    dropout: Probability = 0.0
    sublayers: Annotated[tuple[Annotated[Component, SlotField("sublayer")], ...] | None, Field(min_length=1), AsTuple] = None


@dataclass(frozen=True)
class LayerRun:
    """A leaf of the pattern: one layer, repeated in nested loops.

    Args:
        start: the number of its first module.
        loops: (count, stride) of each loop; the modules have the numbers `start + sum(i_k * stride_k)`, 0 <= i_k < count_k.
    """

    layer: Layer
    start: int
    loops: tuple[tuple[int, int], ...]

    @property
    def times(self) -> int:
        total = 1
        for count, _ in self.loops:
            total *= count
        return total

    def numbers(self) -> Iterator[int]:
        """The numbers of its modules, lazily."""

        def walk(loops: tuple[tuple[int, int], ...], base: int) -> Iterator[int]:
            if not loops:
                yield base
                return
            (count, stride), rest = loops[0], loops[1:]
            for index in range(count):
                yield from walk(rest, base + index * stride)

        return walk(self.loops, self.start)


def modules_in(layers: tuple[Layer, ...]) -> int:
    """The number of distinct layer modules (sets of weights) of a pattern."""
    return sum((1 if group.shared else group.repeat) * (modules_in(group.layers) if group.layers else 1) for group in layers)


def depth(layers: tuple[Layer, ...]) -> int:
    """The number of layers that a token passes through; a shared layer counts each time."""
    return sum(group.repeat * (depth(group.layers) if group.layers else 1) for group in layers)


def leaves(layers: tuple[Layer, ...], start: int = 0, loops: tuple[tuple[int, int], ...] = ()) -> Iterator[LayerRun]:
    """Every leaf of a pattern with the numbers of its modules, unexpanded."""
    for group in layers:
        inner = modules_in(group.layers) if group.layers else 1
        inner_loops = loops if group.shared or group.repeat == 1 else (*loops, (group.repeat, inner))
        if group.layers:
            yield from leaves(group.layers, start, inner_loops)
        else:
            yield LayerRun(group, start, inner_loops)
        start += inner * (1 if group.shared else group.repeat)


def layer_paths(layers: tuple[Layer, ...], path: str) -> Iterator[tuple[str, Layer]]:
    """Every leaf of a pattern with its path in the spec, below the given one."""
    for number, group in enumerate(layers):
        if group.layers:
            yield from layer_paths(group.layers, f"{path}.{number}.layers")
        else:
            yield f"{path}.{number}", group


def sequence(layers: tuple[Layer, ...]) -> Iterator[tuple[int, Layer]]:
    """The layers in the order of the forward pass, lazily.

    Args:
        layers: the pattern of a stack.

    Returns:
        (module number, layer) for each layer; a shared module occurs several times.
    """

    def walk(layers: tuple[Layer, ...], start: int) -> Iterator[tuple[int, Layer]]:
        for group in layers:
            inner = modules_in(group.layers) if group.layers else 1
            for index in range(group.repeat):
                base = start + (0 if group.shared else index * inner)
                if group.layers:
                    yield from walk(group.layers, base)
                else:
                    yield base, group
            start += inner * (1 if group.shared else group.repeat)

    return walk(layers, 0)


def applications(layers: tuple[Layer, ...]) -> Iterator[tuple[int, Layer]]:
    """Every leaf with the number of times a token passes through it."""

    def walk(layers: tuple[Layer, ...], times: int) -> Iterator[tuple[int, Layer]]:
        for group in layers:
            if group.layers:
                yield from walk(group.layers, times * group.repeat)
            else:
                yield times * group.repeat, group

    return walk(layers, 1)
