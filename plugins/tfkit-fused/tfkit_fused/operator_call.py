"""A call of the operators, and the class of calls that it shares measured tiles with."""

from __future__ import annotations

from dataclasses import dataclass

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
    d, v, q, k = (f"{name}{power_of_two(size)}" for name, size in sizes.items())
    group = f"group{given.query.shape[1] // given.key.shape[1]}"
    there = {
        "left": given.left, "right": given.right, "key_lengths": given.key_lengths, "query_lengths": given.query_lengths,
        "key_visible": given.key_visible, "segments": given.query_segments, "visible": given.visible,
        given.bias_kind: given.bias, "softcap": given.softcap, "dropout": given.seed,
    }  # fmt: skip
    terms = (name for name, term in there.items() if term is not None)
    return " ".join([kernel, str(given.query.dtype).removeprefix("torch."), d, v, group, q, k, *terms])


def power_of_two(size: int) -> int:
    """The least power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()


def signature(given: Call) -> tuple[object, ...]:
    """Equal for calls whose kernels Triton specialises in the same way: all of a call but its numbers, and the length of keys
    where no stride depends on it, so that each step of decoding from a cache has the same."""
    tensors = (
        given.query, given.key, given.value, given.offsets, given.key_lengths, given.query_lengths, given.key_visible,
        given.query_segments, given.key_segments, given.visible, given.bias, given.seed,
    )  # fmt: skip
    kinds = [None if each is None else (each.dtype, each.stride(), each.data_ptr() & 15) for each in tensors]
    sizes = (given.query.shape[1:], given.key.shape[1], given.value.shape[3], None if given.bias is None else given.bias.shape)
    others = (given.bias_kind, given.bias_low, given.left, given.right, given.scale > 0.0, given.softcap is None)
    return (given.query.device, *kinds, *sizes, *others)
