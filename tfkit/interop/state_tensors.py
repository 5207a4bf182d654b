"""A decoding state as named tensors, and back.

memory.SITE.key, .value                          keys (B, G, K, D) and values (B, G, K, V) of a cross-attention site
memory.NODE, .visible, .ids, .layers.I, .states.I      what the decoder reads of another node
past.SITE.key, .value                            keys (B, G, P, D) and values (B, G, P, V) of P earlier tokens
past.NODE.I                                      recurrent states (B, N) after the P tokens
past.visible                                     (B, P) bool, False for padding
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..nn.runtime.decoding_state import DecodingState, KeyValueCache
from ..nn.runtime.node_output import NodeOutput, Padding

Named = dict[str, Tensor]


class ConcatenatedCache(KeyValueCache):
    """A cache that makes new tensors. `KeyValueCache` writes into buffers, which a program does not have."""

    def __init__(self, key: Tensor | None = None, value: Tensor | None = None) -> None:
        super().__init__(1)
        self.key, self.value = key, value

    def write(self, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self.key = key if self.key is None else torch.cat([self.key, key], 2)
        self.value = value if self.value is None else torch.cat([self.value, value], 2)
        return self.key, self.value


def memory_of(state: DecodingState) -> Named:
    """The tensors that a decoder reads and no step changes."""
    named = {}
    for site, (key, value) in state.crossed.items():
        named.update({f"memory.{site}.key": key, f"memory.{site}.value": value})
    for node, output in state.node_outputs.items():
        named.update(_fields(node, output))
    return named


def caches_of(state: DecodingState) -> Named:
    """The keys and values of the self-attention sites."""
    named = {}
    for site, cache in state.caches.items():
        assert cache.key is not None
        assert cache.value is not None
        named.update({f"past.{site}.key": cache.key, f"past.{site}.value": cache.value})
    return named


def recurrent_of(states: dict[str, tuple[Tensor, ...]]) -> Named:
    """The recurrent states."""
    return {f"past.{node}.{index}": tensor for node, tensors in states.items() for index, tensor in enumerate(tensors)}


def state_of(tensors: Named, like: DecodingState) -> DecodingState:
    """The decoding state of these tensors.

    Args:
        tensors: the tensors, with `past.visible`.
        like: a state with the same names. What `tensors` does not have of the memory is taken from it.
    """
    batch, length = tensors["past.visible"].shape
    state = DecodingState(like.target, batch, 1, length)
    for site in like.caches:
        state.caches[site] = ConcatenatedCache(tensors[f"past.{site}.key"], tensors[f"past.{site}.value"])
    for site in like.crossed:
        state.crossed[site] = tensors[f"memory.{site}.key"], tensors[f"memory.{site}.value"]
    for node, states in like.recurrent.items():
        state.recurrent[node] = tuple(tensors[f"past.{node}.{index}"] for index in range(len(states)))
    for node, output in like.node_outputs.items():
        state.node_outputs[node] = _output(node, {**_fields(node, output), **tensors})
    return state


def _fields(node: str, output: NodeOutput) -> Named:
    single = {"": output.tensor, ".visible": output.padding.visible, ".ids": output.ids}
    named = {f"memory.{node}{name}": tensor for name, tensor in single.items() if tensor is not None}
    for name, tensors in (("layers", output.layers), ("states", output.states)):
        named.update({f"memory.{node}.{name}.{index}": tensor for index, tensor in enumerate(tensors or ())})
    return named


def _output(node: str, fields: Named) -> NodeOutput:
    """The inverse of `_fields`."""
    name = f"memory.{node}"
    layers, states = (
        tuple(tensor for field, tensor in fields.items() if field.startswith(f"{name}.{several}.")) or None
        for several in ("layers", "states")
    )
    return NodeOutput(fields[name], Padding(fields.get(f"{name}.visible")), fields.get(f"{name}.ids"), layers, states)
