"""A call of the operators, and the class of calls that it shares measured tiles with."""

from __future__ import annotations

from dataclasses import dataclass

import triton
from torch import Tensor


@dataclass(frozen=True)
class Call:
    """A call as the operators have it: its tensors, and what is no tensor."""

    query: Tensor
    key: Tensor
    value: Tensor
    offsets: Tensor | None
    key_lengths: Tensor | None
    query_lengths: Tensor | None
    key_visible: Tensor | None
    query_segments: Tensor | None
    key_segments: Tensor | None
    visible: Tensor | None
    bias: Tensor | None
    seed: Tensor | None
    bias_kind: str
    bias_low: int
    offset: int
    left: int | None
    right: int | None
    scale: float
    softcap: float | None
    dropout: float
    tile_queries: int | None
    tile_keys: int | None
    tuned: str
    atomic: bool


def class_of(kernel: str, given: Call) -> str:
    """Calls of one kernel, dtype and head dims, with the same terms and lengths up to the same power of two, share a class. The
    batch size does not count, so that a batch row gives the same bits alone and among others.

    In words: `forward bfloat16 d64 v64 group1 q1024 k1024 right key_lengths`.
    """
    (Q, D), (K, V) = given.query.shape[2:], given.value.shape[2:]
    sizes = {"d": max(D, 16), "v": max(V, 16), "q": Q, "k": K}
    d, v, q, k = (f"{name}{triton.next_power_of_2(size)}" for name, size in sizes.items())
    group = f"group{given.query.shape[1] // given.key.shape[1]}"
    there = {
        "left": given.left, "right": given.right, "key_lengths": given.key_lengths, "query_lengths": given.query_lengths,
        "key_visible": given.key_visible, "segments": given.query_segments, "visible": given.visible,
        given.bias_kind: given.bias, "softcap": given.softcap, "dropout": given.seed,
    }  # fmt: skip
    terms = (name for name, term in there.items() if term is not None)
    return " ".join([kernel, str(given.query.dtype).removeprefix("torch."), d, v, group, q, k, *terms])
