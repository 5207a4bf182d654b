"""Named calls that together have every feature of the contract: every mask term alone and in pairs, fully masked rows,
every bias, grouping, V != D, one query, block edges. Unlike drawn calls, these are fixed and have names.

B, H, D, V and the lengths differ pairwise, so that a swapped axis fails, except in the square cases: their fast paths must
be met too.
"""

from __future__ import annotations

from functools import partial

from .case import Case

call = partial(Case, B=2, H=6, G=6, Q=5, K=7, D=8, V=8, gradients=True, bias_gradient=True)

CASES = (
    call(name="plain"),
    call(name="plain_square", Q=7),
    call(name="one_key", K=1),
    call(name="causal_square", Q=7, causal=True, offset=0),
    call(name="causal_offset", causal=True, offset=2),
    call(name="causal_more_queries", Q=11, causal=True, offset=0),
    call(name="causal_more_keys", K=12, causal=True, offset=0),
    call(name="causal_masked_rows", causal=True, offset=-3),
    call(name="causal_offsets", causal=True, offset=(3, -2)),
    call(name="decode", Q=1, causal=True, offset=6),
    call(name="decode_cache", Q=1, causal=True, offset=3),
    call(name="decode_ragged", Q=1, causal=True, offset=(6, 2)),
    call(name="window_left", window=(2, None), offset=1),
    call(name="window_right", window=(None, 1), offset=1),
    call(name="window_both", window=(1, 2), offset=3),
    call(name="window_causal", Q=7, window=(2, 0), offset=1, causal=True),
    call(name="window_offsets", window=(2, 1), offset=(4, -2)),
    call(name="window_masked_rows", window=(1, 1), offset=5),
    call(name="window_lengths", window=(2, 3), offset=0, key_lengths=(10, 4), query_lengths=(8, 2)),
    call(name="key_lengths", key_lengths=(10, 3)),
    call(name="no_keys", key_lengths=(0, 4)),
    call(name="query_lengths", query_lengths=(8, 3)),
    call(name="no_queries", query_lengths=(-1, 3), key_lengths=(3, 5)),
    call(name="right_padded", Q=7, causal=True, offset=0, key_lengths=(10, 4), query_lengths=(10, 4), shared_lengths=True),
    call(name="right_padded_causal_keys", Q=7, causal=True, offset=0, key_lengths=(3, 7)),
    call(name="left_padded", causal=True, offset=2, key_visible="left"),
    call(name="key_visible", key_visible="coins"),
    call(name="segments", segments=3),
    call(name="segments_causal", segments=3, causal=True, offset=2),
    call(name="segments_visible", segments=3, visible="BQK"),
    call(name="visible", visible="BHQK"),
    call(name="visible_heads", visible="HK"),
    call(name="visible_pairs", visible="Q.K"),
    call(name="visible_queries", visible="BQ"),
    call(name="grouped", G=3, causal=True, offset=2),
    call(name="one_group", G=1, key_lengths=(7, 3)),
    call(name="value_dim", V=4, causal=True, offset=2),
    call(name="dense_bias", bias="dense"),
    call(name="dense_bias_heads", causal=True, offset=2, bias="dense", bias_axes="HQK", bias_dtype="query"),
    call(name="dense_bias_keys", Q=7, causal=True, offset=0, key_lengths=(10, 4), query_lengths=(10, 4), shared_lengths=True,
         bias="dense", bias_axes="BK", bias_dtype="query"),
    call(name="linear_bias", causal=True, offset=2, bias="linear"),
    call(name="linear_bias_offsets", offset=(3, -1), bias="linear"),
    call(name="distance_bias", Q=7, offset=0, bias="distance", bias_values=6),
    call(name="distance_bias_padded", causal=True, offset=2, key_lengths=(7, 0), bias="distance", bias_values=6,
         bias_dtype="query"),
    call(name="distance_bias_offsets", G=2, causal=True, offset=(6, 1), bias="distance", bias_values=6),
    call(name="softcap", causal=True, offset=2, softcap=1.5),
    call(name="softcap_bias", Q=7, G=2, V=3, causal=True, offset=0, key_lengths=(10, 4), query_lengths=(10, 4),
         shared_lengths=True, bias="distance", bias_values=6, softcap=0.8),
    call(name="many_keys", Q=3, K=130, H=2, G=1, causal=True, offset=127),
    call(name="many_keys_padded", Q=3, K=129, H=4, G=4, key_lengths=(65, 129)),
)  # fmt: skip
"""The table, in the order from plain to large."""
