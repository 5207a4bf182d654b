"""The contract's masks and biases as tensors: written once, so that no backend states A3, A4 and A5 in its own words.

    visible[b,h,i,j] = every term of the mask shows key j to query i           (A4: query i stands at offset[b] + i)
    bias[b,h,i,j]    = values[b,h,i,j] | -slopes[h] |d| | values[h, clamp(d, low, low+R-1) - low],   d = j - (offset[b] + i)

Tensors come out only as large as their terms ask for: key lengths alone give (B,1,1,K), causal alone (1,1,Q,K). All of it
traces under torch.compile and torch.export and reads no tensor's values.
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
    """The sizes that the renderers need, read off a call's query and key."""
    query = inputs.query
    batch, heads, queries, _ = query.shape
    return Shapes(batch, heads, queries, inputs.key.shape[2], query.dtype, query.device)


def visible(mask: Mask, shapes: Shapes) -> Bool[Tensor, "b h q k"] | None:
    """The whole mask: bool (B|1, H|1, Q|1, K|1), True where a query sees a key; None when nothing hides anything."""
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
    """The query lengths alone: bool (B,1,Q,1), False in the rows that see nothing; None without query lengths."""
    if mask.query_lengths is None:
        return None
    queries = torch.arange(shapes.queries, device=shapes.device)
    return (queries < mask.query_lengths[:, None])[:, None, :, None]


def no_fully_masked_row(mask: Mask, shapes: Shapes) -> bool:
    """Whether the mask's structure alone guarantees that no row is blind: causal, no window, an int offset from 0 up."""
    others = (mask.window, mask.key_lengths, mask.query_lengths, mask.key_visible, mask.query_segments, mask.visible)
    return all(term is None for term in others) and (
        not mask.causal or (mask.offset is not None and not isinstance(mask.offset, Tensor) and always(mask.offset >= 0))
    )


def unmask_empty_rows(visible: Bool[Tensor, "*rows K"]) -> tuple[Bool[Tensor, "*rows K"], Bool[Tensor, "*rows 1"]]:
    """A5, before the kernel: blind rows are shown every key, so that no softmax is taken over nothing.

    Returns the opened mask and `rows` (B|1, H|1, Q|1, 1), True where a query really sees a key; `select_rows` takes the
    opened rows back out. Both together give zero output and zero gradients without a NaN, in whatever kernel runs between.
    """
    rows = visible.any(-1, keepdim=True)
    return visible | ~rows, rows


def select_rows(output: Tensor, rows: Tensor | None, masked: float = 0.0) -> Tensor:
    """A5, after the kernel: `output` where a row sees a key, `blind` elsewhere; None means that every row does.

    The gradient that enters a blind row is replaced by zero here, whatever it was, infinities included.
    """
    return output if rows is None else torch.where(rows, output, masked)


def dense_bias(bias: Bias, offset: int | Int[Tensor, " B"] | None, shapes: Shapes) -> Float[Tensor, "b h q k"]:
    """Any bias written out: (B|1, H|1, Q|1, K|1), differentiable, in the dtype of its values (linear: float32 or wider).

    A distance bias is gathered in float32, for float64 queries in float64: its backward adds up to B*Q*K terms into each value.
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
    """j - (offset + i): integers (1,Q,K), or (B,Q,K) with an offset per batch row."""
    queries = torch.arange(shapes.queries, device=shapes.device)[:, None]
    keys = torch.arange(shapes.keys, device=shapes.device)
    if isinstance(offset, Tensor):
        return keys - (offset[:, None, None] + queries)
    return (keys - (queries + (offset or 0)))[None]


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """The dtype to accumulate in (A8): float64 for float64, float32 for everything else."""
    return torch.promote_types(dtype, torch.float32)


def expand_heads(tensor: Shaped[Tensor, "B G K D"], heads: int) -> Shaped[Tensor, "B {heads} K D"]:
    """Key or value (B,G,K,*) as (B,H,K,*): query head h reads head h // (H // G) (A1)."""
    groups = tensor.shape[1]
    return tensor if groups == heads else tensor.repeat_interleave(heads // groups, dim=1)


def always(condition: Any) -> bool:
    """Whether a condition on sizes holds for every size the program is traced for; a plain bool stands for itself."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # slow to import, only torch.export needs it

    return bool(statically_known_true(condition))


def _near(mask: Mask, shapes: Shapes) -> Tensor | None:
    """Causal and window: -left <= j - (offset + i) <= right, or None where that hides nothing."""
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
