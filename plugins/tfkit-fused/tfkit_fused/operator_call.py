"""A call of the operators, and the class of calls that it shares measured tiles with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@dataclass(slots=True, eq=False)
class Call:
    """A call as the operators have it: its tensors, and what is no tensor. Nothing is assigned to it; a frozen class takes
    longer to make."""

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


def class_of(kernel: str, call: Call) -> str:
    """Calls of one kernel, dtype and head dims, with the same terms and lengths up to the same power of two, share a class. The
    batch size does not count, so that a batch row gives the same bits alone and among others.

    In words: `forward bfloat16 d64 v64 group1 q1024 k1024 right key_lengths`.
    """
    query, value = call.query, call.value
    _, H, Q, D = query.shape
    _, G, K, V = value.shape
    return _in_words(
        kernel, query.dtype, max(D, 16), max(V, 16), H // G, (Q - 1).bit_length(), (K - 1).bit_length(), call.bias_kind,
        call.left is None, call.right is None, call.key_lengths is None, call.query_lengths is None,
        call.key_visible is None, call.query_segments is None, call.visible is None, call.bias is None,
        call.softcap is None, call.seed is None,
    )  # fmt: skip


@cache
def _in_words(
    kernel: str, dtype: torch.dtype, D: int, V: int, group: int, queries: int, keys: int, bias_kind: str, *absent: bool
) -> str:
    """`queries` and `keys` are exponents of powers of two; `absent` says of each term whether the call is without it."""
    names = (
        "left", "right", "key_lengths", "query_lengths", "key_visible", "segments", "visible", bias_kind, "softcap", "dropout"
    )  # fmt: skip
    terms = (name for name, lacks in zip(names, absent, strict=True) if not lacks)
    sizes = (f"d{power_of_two(D)}", f"v{power_of_two(V)}", f"group{group}", f"q{1 << queries}", f"k{1 << keys}")
    return " ".join([kernel, str(dtype).removeprefix("torch."), *sizes, *terms])


def power_of_two(size: int) -> int:
    """The least power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()


def signature(call: Call) -> tuple[object, ...]:
    """Equal for calls whose kernels Triton specialises in the same way: all of a call but its numbers, and the length of keys
    where no stride depends on it, so that each step of decoding from a cache has the same."""
    tensors = (
        call.query, call.key, call.value, call.offsets, call.key_lengths, call.query_lengths, call.key_visible,
        call.query_segments, call.key_segments, call.visible, call.bias, call.seed,
    )  # fmt: skip
    kinds = [None if tensor is None else (tensor.dtype, tensor.stride(), tensor.data_ptr() & 15) for tensor in tensors]
    sizes = (call.query.shape[1:], call.key.shape[1], call.value.shape[3], None if call.bias is None else call.bias.shape)
    others = (call.bias_kind, call.bias_low, call.left, call.right, call.scale > 0.0, call.softcap is None)
    return (call.query.device, *kinds, *sizes, *others)
