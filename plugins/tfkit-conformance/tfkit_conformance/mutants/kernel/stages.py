"""The stages of a kernel that read a call: what a query sees, which heads it reads, what is added to its scores.

    d[b,i,j] = j - (offset[b] + i)        a term of the mask: bool (B|1,H|1,Q|1,K|1), True where it shows the key
    bias     = values | -slopes |d| | values[clamp(d, low, low + R - 1) - low]      and its gradient, from that of the scores

Each is a plain function of the call, so that a mutant can be the kernel with one of them replaced. They share no line
with tfkit.attention.rendering and none with the reference: each of the three evaluates the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, Bias, DenseBias, DistanceBias, LinearBias

Term = Callable[[AttentionInputs, Tensor], Tensor]
"""One mask term: the call and the distances (B|1,Q,K) give what it shows, (B|1,H|1,Q|1,K|1)."""

BiasOf = Callable[[AttentionInputs, Tensor, Tensor], Tensor]
"""What a bias adds, from the call, the distances and the bias's own tensor; or that tensor's gradient, from the scores'."""


def positions(call: AttentionInputs) -> Tensor:
    """The positions of the queries: offset[b] + i, integers (B|1, Q)."""
    queries = torch.arange(call.query.shape[2], device=call.query.device)[None]
    offset = call.mask.offset
    return queries + (offset[:, None] if isinstance(offset, Tensor) else offset or 0)


def distances(call: AttentionInputs, standing: Tensor) -> Tensor:
    """How far each key is ahead of each query: integers (B|1, Q, K)."""
    return torch.arange(call.key.shape[2], device=call.query.device) - standing[..., None]


def causal(call: AttentionInputs, distance: Tensor) -> Tensor:
    return distance[:, None] <= 0


def window(call: AttentionInputs, distance: Tensor) -> Tensor:
    left, right = call.mask.window or (None, None)
    return within(distance, left, right)


def within(distance: Tensor, left: int | None, right: int | None) -> Tensor:
    """-left <= d <= right, a side that is None being open: (B|1,1,Q,K)."""
    far = distance.numel() + int(distance.abs().max())
    low, high = -(far if left is None else left), far if right is None else right
    return ((distance >= low) & (distance <= high))[:, None]


def key_lengths(call: AttentionInputs, distance: Tensor) -> Tensor:
    return keys_below(call, given(call.mask.key_lengths))


def keys_below(call: AttentionInputs, lengths: Tensor) -> Tensor:
    """j < lengths[b]: (B,1,1,K)."""
    return (torch.arange(call.key.shape[2], device=lengths.device) < lengths[:, None])[:, None, None]


def query_lengths(call: AttentionInputs, distance: Tensor) -> Tensor:
    return queries_below(call, given(call.mask.query_lengths))


def queries_below(call: AttentionInputs, lengths: Tensor) -> Tensor:
    """i < lengths[b]: (B,1,Q,1)."""
    return (torch.arange(call.query.shape[2], device=lengths.device) < lengths[:, None])[:, None, :, None]


def key_visible(call: AttentionInputs, distance: Tensor) -> Tensor:
    key_mask: Tensor = given(call.mask.key_visible)
    return key_mask[:, None, None]


def segments(call: AttentionInputs, distance: Tensor) -> Tensor:
    queries, keys = given(call.mask.query_segments), given(call.mask.key_segments)
    return same_segment(queries, keys)


def same_segment(queries: Tensor, keys: Tensor) -> Tensor:
    """(B,Q) and (B,K) -> (B,1,Q,K)."""
    return (queries[:, :, None] == keys[:, None])[:, None]


def visible(call: AttentionInputs, distance: Tensor) -> Tensor:
    return four_axes(given(call.mask.visible))


TERMS: dict[str, Term] = {
    "causal": causal, "window": window, "key_lengths": key_lengths, "query_lengths": query_lengths,
    "key_visible": key_visible, "segments": segments, "visible": visible,
}  # fmt: skip


def all_of(terms: Sequence[Tensor]) -> Tensor:
    """The conjunction of a mask's terms."""
    return reduce(and_, terms)


def read_heads(tensor: Tensor, heads: int) -> Tensor:
    """Key or value (B,G,K,*) as query head h reads it, h // (H // G): (B,H,K,*)."""
    return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)


def gather_heads(gradient: Tensor, groups: int) -> Tensor:
    """The sum over the query heads that read one key/value head: (B,H,K,*) -> (B,G,K,*)."""
    return per_group(gradient, groups).sum(2)


def per_group(gradient: Tensor, groups: int) -> Tensor:
    """(B,H,K,*) -> (B,G,H/G,K,*)."""
    B, H, *rest = gradient.shape
    return gradient.reshape(B, groups, H // groups, *rest)


def bias_values(bias: Bias) -> Tensor:
    """The bias's own tensor, which carries its gradient."""
    return bias.slopes if isinstance(bias, LinearBias) else bias.values


def dense(call: AttentionInputs, distance: Tensor, values: Tensor) -> Tensor:
    return four_axes(values)


def linear(call: AttentionInputs, distance: Tensor, slopes: Tensor) -> Tensor:
    return -slopes[:, None, None] * distance.abs()[:, None]


def by_distance(call: AttentionInputs, distance: Tensor, values: Tensor) -> Tensor:
    return values[:, clamped(call, distance)].transpose(0, 1)


def clamped(call: AttentionInputs, distance: Tensor) -> Tensor:
    """clamp(d, low, low + R - 1) - low."""
    bias = of_distance(call)
    return (distance - bias.low).clamp(0, bias.values.shape[1] - 1)


BIASES: dict[type, BiasOf] = {
    DenseBias: dense, LinearBias: linear, DistanceBias: by_distance
}  # fmt: skip
"""What a bias adds, from the call, the distances and the bias's own tensor: (B|1,H|1,Q|1,K|1)."""


def dense_gradient(call: AttentionInputs, distance: Tensor, grad_scores: Tensor) -> Tensor:
    return grad_scores.sum_to_size(bias_values(given(call.bias)).shape)


def linear_gradient(call: AttentionInputs, distance: Tensor, grad_scores: Tensor) -> Tensor:
    return -(grad_scores * distance.abs()[:, None]).sum((0, 2, 3))


def distance_gradient(call: AttentionInputs, distance: Tensor, grad_scores: Tensor) -> Tensor:
    """Value by value: unlike a scatter, the same on every run."""
    index = clamped(call, distance)[:, None]
    return torch.stack([(grad_scores * (index == r)).sum((0, 2, 3)) for r in range(of_distance(call).values.shape[1])], 1)


BIAS_GRADIENTS: dict[type, BiasOf] = {
    DenseBias: dense_gradient, LinearBias: linear_gradient, DistanceBias: distance_gradient
}  # fmt: skip
"""The gradient of a bias's own tensor, from the call, the distances and the gradient of the scores (B,H,Q,K)."""


def draw(call: AttentionInputs) -> Tensor | None:
    """The factors of dropout (B,H,Q,K): 0 with probability p, else 1/(1-p); one draw from torch's generator."""
    if call.dropout == 0.0:
        return None
    B, H, Q, _ = call.query.shape
    wide = torch.promote_types(call.query.dtype, torch.float32)
    kept = torch.rand(B, H, Q, call.key.shape[2], device=call.query.device) >= call.dropout
    return kept.to(wide) / max(1.0 - call.dropout, torch.finfo(torch.float32).tiny)


def capped_and_biased(raw: Tensor, bias: Tensor | float, call: AttentionInputs) -> tuple[Tensor, Tensor | float]:
    """c tanh(R/c) + bias and its slope 1 - tanh^2, or R + bias and 1."""
    if call.softcap is None:
        return raw + bias, 1.0
    bent = torch.tanh(raw / call.softcap)
    return call.softcap * bent + bias, 1.0 - bent * bent


def hide(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -torch.inf)


def highest(so_far: Tensor, scores: Tensor) -> Tensor:
    return torch.maximum(so_far, scores.amax(-1, keepdim=True))


def fade(total: Tensor, output: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Both sums taken to the new maximum."""
    return total * factor, output * factor


def unchanged(first: Any, *rest: Any) -> Any:
    """The first argument: a stage that a correct kernel does not have."""
    return first


def keep(total: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """The sums as they are kept from block to block."""
    return total, output


def zero_fully_masked(output: Tensor, rows: Tensor, value: Tensor) -> Tensor:
    return torch.where(rows, output, 0.0)


def only_seeing_rows(grad_output: Tensor, rows: Tensor) -> Tensor:
    """The incoming gradient, zero in fully masked rows for any value."""
    return torch.where(rows, grad_output, 0.0)


def row_sums(grad_output: Tensor, output: Tensor) -> Tensor:
    return (grad_output * output).sum(-1, keepdim=True)


def grad_scores(p: Tensor, dp: Tensor, row_sums: Tensor, columns: slice, keys: int) -> Tensor:
    """dS = P (dP - D) of one block of keys."""
    return p * (dp - row_sums)


def add(leaf: str, total: Tensor, term: Tensor, columns: slice, call: AttentionInputs) -> Tensor:
    """One block's part of a gradient."""
    return total + term


def four_axes(tensor: Tensor) -> Tensor:
    return tensor[(None,) * (4 - tensor.dim())]


def of_distance(call: AttentionInputs) -> DistanceBias:
    """The call's bias, which is a distance bias."""
    if not isinstance(call.bias, DistanceBias):
        raise TypeError("this call has no distance bias")
    return call.bias


def given(part: Any) -> Any:
    """A part of the call that is set."""
    if part is None:
        raise TypeError("a stage was asked for a part that the call does not have")
    return part
