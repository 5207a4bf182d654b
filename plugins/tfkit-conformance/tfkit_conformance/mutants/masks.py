"""Wrong masks: a term is off by one, reads another row, or is combined wrongly; single keys are lost or shown."""

from __future__ import annotations

from functools import reduce
from operator import or_

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs

from .kernel import stages
from .kernel.kernel import Kernel
from .kernel.stages import given, within
from .mutant import of_family

mutant = of_family("masks")


def term(name: str, shows: stages.Term) -> Kernel:
    """The kernel with one mask term that shows something else."""
    return Kernel(terms={**stages.TERMS, name: shows})


def window(left: int, right: int, swapped: bool = False) -> Kernel:
    """The kernel whose window is wider by so many keys on each side."""

    def shows(call: AttentionInputs, distance: Tensor) -> Tensor:
        sides = given(call.mask.window)
        before, after = sides[::-1] if swapped else sides
        return within(distance, None if before is None else before + left, None if after is None else after + right)

    return term("window", shows)


def standing(call: AttentionInputs, offset: Tensor | int) -> Tensor:
    """The positions of queries at another offset: (B|1, Q)."""
    queries = torch.arange(call.query.shape[2], device=call.query.device)[None]
    return queries + (offset[:, None] if isinstance(offset, Tensor) else offset)


def offset_of(call: AttentionInputs) -> Tensor:
    """The offset of every batch row (B,)."""
    return torch.as_tensor(call.mask.offset or 0 if not isinstance(call.mask.offset, Tensor) else call.mask.offset).expand(
        call.query.shape[0]
    )


def keys(visible: Tensor) -> Tensor:
    return torch.arange(visible.shape[3], device=visible.device)


def first_seen(visible: Tensor) -> Tensor:
    """True at the first key that each query sees: (B,H,Q,K)."""
    return visible & (visible.cumsum(-1) == 1)


def last_seen(visible: Tensor) -> Tensor:
    return first_seen(visible.flip(-1)).flip(-1)


def middle_seen(visible: Tensor) -> Tensor:
    """True at the middle one of the keys that each query sees, where these are three or more."""
    count = visible.sum(-1, keepdim=True)
    return visible & (visible.cumsum(-1) == count // 2 + 1) & (count > 2)


def only_row(visible: Tensor, row: int) -> Tensor:
    """True in one query row of the first head and batch row."""
    chosen = torch.zeros_like(visible)
    chosen[0, 0, row] = True
    return chosen


def one_more(visible: Tensor) -> Tensor:
    """In the last query row that a key is hidden from, the first hidden key is shown too."""
    hidden = ~visible[0, 0]
    rows = hidden.any(-1).nonzero().flatten()
    more = visible.clone()
    if rows.numel():
        more[0, 0, rows[-1], hidden[rows[-1]].nonzero()[0]] = True
    return more


def previous_row(tensor: Tensor) -> Tensor:
    return tensor.roll(1, 0)


def lengths_from_the_left(call: AttentionInputs, distance: Tensor) -> Tensor:
    """As many keys as are visible, counted from the first: padding is taken to be on the right."""
    return stages.keys_below(call, given(call.mask.key_visible).sum(1))


def all_but_last(terms: list[Tensor]) -> Tensor:
    return stages.all_of(terms[:-1] or terms)


def whole_blocks_of(call: AttentionInputs, size: int) -> int:
    """The end of the last full block of keys, or K if there is no full block."""
    K = call.key.shape[2]
    return K - K % size if size < K else K


def all_if_none(lengths: Tensor) -> Tensor:
    return torch.where(lengths <= 0, 2**30, lengths)


def in_order(call: AttentionInputs, distance: Tensor) -> Tensor:
    queries, keys = given(call.mask.query_segments), given(call.mask.key_segments)
    return (queries[:, :, None] >= keys[:, None])[:, None]  # type: ignore[no-any-return]


MUTANTS = (
    mutant("causal_one_too_many", "the causal limit is off by one: each query also sees the next key",
          term("causal", lambda call, d: (d <= 1)[:, None])),
    mutant("causal_one_too_few", "the causal limit is off by one: no query sees the key at its own position",
          term("causal", lambda call, d: (d < 0)[:, None])),
    mutant("causal_by_blocks", "causality is kept by blocks of 4 keys instead of key by key",
          term("causal", lambda call, d: (d <= 3 - offset_of(call)[:, None, None] % 4)[:, None])),
    mutant("causal_ignored_for_one_query", "a single query sees every key, wherever it stands",
          term("causal", lambda call, d: (d <= (0 if call.query.shape[2] > 1 else d.max()))[:, None]),
          "the single query is after every key"),
    mutant("causal_from_the_end", "causality ends at the last key instead of starting from the offset (a default of K - Q)",
          Kernel(positions=lambda call: standing(call, call.key.shape[2] - call.query.shape[2])), "offset = K - Q"),
    mutant("offset_ignored", "the offset is ignored: every call starts at position 0",
          Kernel(positions=lambda call: standing(call, 0)), "offset 0"),
    mutant("offset_of_first_row", "the offset of the first batch row is used for all",
          Kernel(positions=lambda call: standing(call, offset_of(call)[:1])), "all rows have one offset"),
    mutant("offset_not_negative", "a negative offset is taken as 0",
          Kernel(positions=lambda call: standing(call, offset_of(call).clamp(min=0))), "no offset is negative"),
    mutant("window_left_one_too_many", "the window is one key too wide on the left", window(1, 0)),
    mutant("window_left_one_too_few", "the window is one key too narrow on the left", window(-1, 0)),
    mutant("window_right_one_too_many", "the window is one key too wide on the right", window(0, 1)),
    mutant("window_right_one_too_few", "the window is one key too narrow on the right", window(0, -1)),
    mutant("window_sides_swapped", "the two sides of the window are swapped", window(0, 0, swapped=True)),
    mutant("window_left_ignored", "the left side of the window is ignored",
          term("window", lambda call, d: within(d, None, given(call.mask.window)[1]))),
    mutant("window_right_ignored", "the right side of the window is ignored",
          term("window", lambda call, d: within(d, given(call.mask.window)[0], None))),
    mutant("window_open_side_closed", "a side of the window that is open is taken as 0",
          term("window", lambda call, d: within(d, *((side or 0) for side in given(call.mask.window))))),
    mutant("key_lengths_one_too_many", "one key too many is visible at the end of the key lengths",
          term("key_lengths", lambda call, d: stages.keys_below(call, given(call.mask.key_lengths) + 1))),
    mutant("key_lengths_one_too_few", "one key too few is visible at the end of the key lengths",
          term("key_lengths", lambda call, d: stages.keys_below(call, given(call.mask.key_lengths) - 1))),
    mutant("key_lengths_of_previous_row", "the key lengths of another batch row are used",
          term("key_lengths", lambda call, d: stages.keys_below(call, previous_row(given(call.mask.key_lengths))))),
    mutant("key_length_zero_taken_as_all", "a key length of 0 is taken as no length at all",
          term("key_lengths", lambda call, d: stages.keys_below(call, all_if_none(given(call.mask.key_lengths)))),
          "every row has a key"),
    mutant("query_lengths_ignored", "query lengths are ignored",
          term("query_lengths", lambda call, d: torch.ones_like(stages.query_lengths(call, d)))),
    mutant("query_lengths_one_too_many", "one query too many is live at the end of the query lengths",
          term("query_lengths", lambda call, d: stages.queries_below(call, given(call.mask.query_lengths) + 1))),
    mutant("query_lengths_hide_keys", "query lengths hide keys instead of queries",
          term("query_lengths", lambda call, d: stages.keys_below(call, given(call.mask.query_lengths)))),
    mutant("segments_of_keys_alone", "a query's segment is read from the keys' segments",
          term("segments", lambda call, d: stages.same_segment(
              given(call.mask.key_segments)[:, torch.arange(call.query.shape[2]) % call.key.shape[2]],
              given(call.mask.key_segments)))),
    mutant("segments_of_first_row", "the segments of the first batch row are used for all",
          term("segments", lambda call, d: stages.segments(call, d)[:1])),
    mutant("segments_in_order", "a query also sees the segments before its own",
          term("segments", in_order)),
    mutant("key_visible_of_first_row", "the visible keys of the first batch row are used for all",
          term("key_visible", lambda call, d: stages.key_visible(call, d)[:1])),
    mutant("key_visible_as_right_padding", "visible keys are counted and taken to come first: padding on the right is assumed",
          term("key_visible", lengths_from_the_left), "padding is on the right"),
    mutant("key_visible_inverted", "visible keys are taken as hidden ones, and hidden ones as visible",
          term("key_visible", lambda call, d: ~stages.key_visible(call, d))),
    mutant("visible_of_first_head", "the visible pairs of the first head are used for all",
          term("visible", lambda call, d: stages.visible(call, d)[:, :1]), "`visible` is the same for all heads"),
    mutant("visible_of_first_row", "the visible pairs of the first batch row are used for all",
          term("visible", lambda call, d: stages.visible(call, d)[:1]), "`visible` is the same for all batch rows"),
    mutant("visible_of_first_query", "the visible keys of the first query are used for all",
          term("visible", lambda call, d: stages.visible(call, d)[:, :, :1]), "`visible` is the same for all queries"),
    mutant("mask_of_previous_row", "the mask of another batch row is used",
          Kernel(see=lambda visible, call: previous_row(visible)), "all batch rows have one mask"),
    mutant("mask_ignored", "the mask is ignored", Kernel(see=lambda visible, call: torch.ones_like(visible))),
    mutant("square_taken_as_causal", "as many queries as keys are taken to mean: causal",
          Kernel(see=lambda visible, call: visible.tril() if visible.shape[2] == visible.shape[3] > 1 else visible),
          "the call is causal, or Q and K differ"),
    mutant("terms_joined_by_or", "the terms of a mask are joined by OR instead of AND",
          Kernel(join=lambda terms: reduce(or_, terms)), "the mask has one term"),
    mutant("last_term_ignored", "of several mask terms the last is ignored",
          Kernel(join=all_but_last), "the mask has one term"),
    mutant("first_key_dropped", "in the first query row the first visible key is dropped",
          Kernel(see=lambda visible, call: visible & ~(first_seen(visible) & only_row(visible, 0)))),
    mutant("last_key_dropped", "in the last query row the last visible key is dropped",
          Kernel(see=lambda visible, call: visible & ~(last_seen(visible) & only_row(visible, -1)))),
    mutant("middle_key_dropped", "in the last query row a key in the middle is dropped",
          Kernel(see=lambda visible, call: visible & ~(middle_seen(visible) & only_row(visible, -1))),
          "the row sees fewer than 3 keys"),
    mutant("one_key_leaks", "in one query row one hidden key is visible", Kernel(see=lambda visible, call: one_more(visible))),
    mutant("tail_block_dropped", "the keys after the last full block of 16 are dropped",
          Kernel(see=lambda visible, call: visible & (keys(visible) < whole_blocks_of(call, 16))),
          "K is below 17 or a multiple of 16"),
    mutant("finite_fill", "hidden scores are -10000 instead of minus infinity",
          Kernel(hide=lambda scores, visible: torch.where(visible, scores, -1e4)), "every query sees a key"),
    mutant("weak_fill", "hidden scores are lowered by 12 instead of set to minus infinity",
          Kernel(hide=lambda scores, visible: torch.where(visible, scores, scores - 12.0))),
)  # fmt: skip
"""The mutants of this family."""
