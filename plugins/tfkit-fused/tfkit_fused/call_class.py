"""Which calls share what was measured: those of one kernel, dtype and head dims, with the same terms, and lengths up to the
same power of two. What else is in the batch has no say, so that a batch row gives the same bits alone and among others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton

if TYPE_CHECKING:
    from .launch import Call


def class_of(kernel: str, given: Call) -> str:
    """In words: `forward bfloat16 d64 v64 group1 q1024 k1024 right key_lengths`."""
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
