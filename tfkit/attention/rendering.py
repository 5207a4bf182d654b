"""Masks and biases as tensors. Backends share this code, so that A3, A4 and A5 are implemented once.

    visible[b,h,i,j] = every term of the mask shows key j to query i           (A4: the position of query i is offset[b] + i)
    bias[b,h,i,j]    = values[b,h,i,j] | -slopes[h] |d| | values[h, clamp(d, low, low+R-1) - low],   d = j - (offset[b] + i)

Tensors are only as large as their terms need: key lengths alone give (B,1,1,K), causal alone (1,1,Q,K). Everything can be
traced by torch.compile and torch.export and depends on no tensor values.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from .types import AttentionInputs, Bias, DenseBias, DistanceBias, Mask, Shapes


def shapes_of(inputs: AttentionInputs) -> Shapes:
    """The sizes of a call, as `visible` and `dense_bias` need them.

    Args:
        inputs: the inputs of a backend.

    Returns:
        B, H, Q, K, and the dtype and device of the query.
    """
    query = inputs.query
    batch, heads, queries, _ = query.shape
    return Shapes(batch, heads, queries, inputs.key.shape[2], query.dtype, query.device)


def visible(mask: Mask, shapes: Shapes) -> Bool[Tensor, "b h q k"] | None:
    """All terms of a mask as one tensor (A3, A4).

    Args:
        mask: the mask.
        shapes: the sizes of the call.

    Returns:
        bool (B|1, H|1, Q|1, K|1), True if the query sees the key; None if every key is visible.
    """
    terms = [_near(mask, shapes), queries_that_see(mask, shapes)]
    if mask.key_lengths is not None:
        keys = torch.arange(shapes.keys, device=shapes.device)
        terms.append((keys < mask.key_lengths[:, None])[:, None, None])
    if mask.key_visible is not None:
        terms.append(mask.key_visible[:, None, None])
    if mask.query_segments is not None and mask.key_segments is not None:
        terms.append((mask.query_segments[:, :, None] == mask.key_segments[:, None])[:, None])
    if mask.visible is not None:
        terms.append(_four_axes(mask.visible))
    present = [term for term in terms if term is not None]
    return reduce(and_, present) if present else None


def queries_that_see(mask: Mask, shapes: Shapes) -> Bool[Tensor, "B 1 Q 1"] | None:
    """The query lengths as a mask, bool (B,1,Q,1), False for queries beyond their length; None without query lengths."""
    if mask.query_lengths is None:
        return None
    queries = torch.arange(shapes.queries, device=shapes.device)
    return (queries < mask.query_lengths[:, None])[:, None, :, None]


def no_fully_masked_row(mask: Mask) -> bool:
    """Whether the terms alone guarantee that every query sees a key: at most causality, with an int offset >= 0."""
    others = (mask.window, mask.key_lengths, mask.query_lengths, mask.key_visible, mask.query_segments, mask.visible)
    return all(term is None for term in others) and (
        not mask.causal or (mask.offset is not None and not isinstance(mask.offset, Tensor) and always(mask.offset >= 0))
    )


def unmask_empty_rows(visible: Bool[Tensor, "*rows K"]) -> tuple[Bool[Tensor, "*rows K"], Bool[Tensor, "*rows 1"]]:
    """A5, before the kernel: makes all keys visible in fully masked rows, because a softmax over no key is NaN.

    Together with `select_rows` this gives zero output and zero gradients without NaN, with any kernel in between.

    Args:
        visible: bool (..., K), True if the query sees the key.

    Returns:
        The mask with these rows unmasked, and `rows` (..., 1), False for the rows that were fully masked.
    """
    rows = visible.any(-1, keepdim=True)
    return visible | ~rows, rows


def select_rows(output: Tensor, rows: Tensor | None, masked: float = 0.0) -> Tensor:
    """A5, after the kernel: sets fully masked rows to `masked`, and their gradient to zero even if it is infinite.

    Args:
        output: (..., V)
        rows: (..., 1) from `unmask_empty_rows`; None if no row is fully masked.
        masked: the value of fully masked rows.

    Returns:
        (..., V)
    """
    return output if rows is None else torch.where(rows, output, masked)


def dense_bias(bias: Bias, offset: int | Int[Tensor, " B"] | None, shapes: Shapes) -> Float[Tensor, "b h q k"]:
    """Any bias as a differentiable tensor (B|1, H|1, Q|1, K|1).

    A distance bias is gathered in float32, or float64 for float64 queries, because its backward pass sums up to B * Q * K terms
    into each value.

    Args:
        bias: the bias.
        offset: the position of the first query, an int or (B,) integers; a dense bias ignores it.
        shapes: the sizes of the call.

    Returns:
        The bias in the dtype of its values; a linear bias in float32 or wider.
    """
    if isinstance(bias, DenseBias):
        return _four_axes(bias.values)
    distance = distances(offset, shapes)
    if not isinstance(bias, DistanceBias):
        slopes = bias.slopes.to(accumulation(shapes.dtype))
        return -slopes[:, None, None] * distance.abs()[:, None]
    values = bias.values
    index = (distance - bias.low).clamp(0, values.shape[1] - 1)
    wide = torch.promote_types(accumulation(values.dtype), shapes.dtype)
    gathered = values.to(wide).index_select(1, index.flatten()).view(-1, *index.shape).transpose(0, 1)
    return gathered if wide == torch.float64 else gathered.to(values.dtype)


def distances(offset: int | Int[Tensor, " B"] | None, shapes: Shapes) -> Int[Tensor, "b Q K"]:
    """j - (offset + i), integers (1,Q,K), or (B,Q,K) if each batch row has its own offset."""
    queries = torch.arange(shapes.queries, device=shapes.device)[:, None]
    keys = torch.arange(shapes.keys, device=shapes.device)
    if isinstance(offset, Tensor):
        return keys - (offset[:, None, None] + queries)
    return (keys - (queries + (offset or 0)))[None]


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """The dtype to accumulate in (A8).

    Args:
        dtype: the dtype of the query.

    Returns:
        float64 for float64, float32 for every other dtype.
    """
    return torch.promote_types(dtype, torch.float32)


def expand_heads(tensor: Shaped[Tensor, "B G K D"], heads: int) -> Shaped[Tensor, "B {heads} K D"]:
    """Repeat the heads of a key or value for grouped queries: query head h reads head h // (H // G) (A1).

    Args:
        tensor: (B, G, K, D).
        heads: the number of query heads H, a multiple of G.

    Returns:
        (B, H, K, D)
    """
    groups = tensor.shape[1]
    return tensor if groups == heads else tensor.repeat_interleave(heads // groups, dim=1)


def always(condition: Any) -> bool:
    """Whether a condition on sizes holds for all sizes of a traced program."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # slow to import, only torch.export needs it

    return bool(statically_known_true(condition))


def _near(mask: Mask, shapes: Shapes) -> Tensor | None:
    """Causal and window: -left <= j - (offset + i) <= right; None if that hides no key."""
    left, right = mask.window or (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    offset = mask.offset
    if not isinstance(offset, Tensor):
        first, last = offset or 0, (offset or 0) + shapes.queries - 1
        if left is not None and always(last - left <= 0):
            left = None
        if right is not None and always(first + right >= shapes.keys - 1):
            right = None
    if left is None and right is None:
        return None
    distance = distances(offset, shapes)[:, None]
    sides = [distance >= -left] if left is not None else []
    if right is not None:
        sides.append(distance <= right)
    return reduce(and_, sides)


def _four_axes(tensor: Tensor) -> Tensor:
    return tensor[(None,) * (4 - tensor.dim())]
