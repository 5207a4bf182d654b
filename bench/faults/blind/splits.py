"""Attention with split keys, one row of the batch after the other. Each split has its own softmax, and the splits are merged by
their log-sum-exps (https://pytorch.org/blog/flash-decoding):

    lse = log sum_s exp(lse_s)        output = sum_s exp(lse_s - lse) output_s

Splits that the position of the queries or the length of the keys hides completely are not computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from declaration import declared
from torch import Tensor
from torch.autograd.function import once_differentiable

from tfkit.plugin import AttentionInputs, AttentionOutput, DistanceBias, LinearBias, Mask, NoOptions, require_capabilities

SPLIT = 96
"""Keys of one split."""

BACKEND = declared(
    __name__,
    "Splits of keys, merged by their log-sum-exps; one row of the batch after the other.",
    reference="https://pytorch.org/blog/flash-decoding",
    bias_gradient=frozenset({"dense", "distance"}),
    deterministic_backward=True,
    batch_invariant=True,
)
check = require_capabilities(BACKEND.name, BACKEND.capabilities)


@dataclass(frozen=True)
class Row:
    """The mask and the bias of one row of the batch."""

    low: int | None
    high: int | None
    """Query i sees keys from `low + i` to `high + i`."""
    offset: int
    key_stop: int | None
    query_stop: int | None
    key_visible: Tensor | None  # (K,)
    segments: tuple[Tensor, Tensor] | None  # (Q,), (K,)
    visible: Tensor | None  # (H|1,Q|1,K|1)
    bias: str | None
    first: int  # the distance of the first value of a bias by distance

    def splits(self, queries: int, keys: int) -> list[slice]:
        """The splits with a key that the positions and the length may show."""
        begin = 0 if self.low is None else max(self.low, 0)
        end = keys if self.high is None else min(self.high + queries, keys)
        if self.key_stop is not None:
            end = min(end, self.key_stop)
        starts = range(begin // SPLIT * SPLIT, max(end, 0), SPLIT)
        return [slice(start, min(start + SPLIT, keys)) for start in starts]

    def sight(self, queries: int, part: slice) -> Tensor:
        """True where a query sees a key of the split, (H|1,Q,n)."""
        query, key = torch.arange(queries)[:, None], torch.arange(part.start, part.stop)
        sight = torch.ones(1, queries, part.stop - part.start, dtype=torch.bool)
        if self.low is not None:
            sight &= key - query >= self.low
        if self.high is not None:
            sight &= key - query <= self.high
        if self.key_stop is not None:
            sight &= key < self.key_stop
        if self.query_stop is not None:
            sight &= query < self.query_stop
        if self.key_visible is not None:
            sight &= self.key_visible[part]
        if self.segments is not None:
            sight &= self.segments[0][:, None] == self.segments[1][part]
        if self.visible is not None:
            sight = sight & _part(self.visible, part)
        return sight

    def distance(self, queries: int, part: slice) -> Tensor:
        """Key minus position of the query, (Q,n)."""
        return torch.arange(part.start, part.stop) - (torch.arange(queries)[:, None] + self.offset)

    def index(self, queries: int, part: slice, values: int) -> Tensor:
        return (self.distance(queries, part) - self.first).clamp(0, values - 1)

    def added(self, values: Tensor, queries: int, part: slice) -> Tensor:
        """The bias of the split, (H|1,Q|1,n|1), from the values of this row."""
        if self.bias == "dense":
            return _part(values, part)
        if self.bias == "linear":
            return values[:, None, None] * -self.distance(queries, part).abs()
        return values[:, self.index(queries, part, values.shape[1])]


def _part(tensor: Tensor, part: slice) -> Tensor:
    return tensor if tensor.shape[-1] == 1 else tensor[..., part]


def _rows(mask: Mask, bias, batch: int) -> list[Row]:
    """The mask as numbers and copies, row by row."""
    left, right = mask.window or (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    offsets = mask.offset.tolist() if isinstance(mask.offset, Tensor) else [mask.offset or 0] * batch
    key_stops = [None] * batch if mask.key_lengths is None else mask.key_lengths.tolist()
    query_stops = [None] * batch if mask.query_lengths is None else mask.query_lengths.tolist()
    key_visible = None if mask.key_visible is None else mask.key_visible.clone()
    segments = None if mask.query_segments is None else (mask.query_segments.long().clone(), mask.key_segments.long().clone())
    visible = None if mask.visible is None else _four(mask.visible).clone()
    name = None if bias is None else {DistanceBias: "distance", LinearBias: "linear"}.get(type(bias), "dense")
    plain = Row(None, None, 0, None, None, None, None, None, name, bias.low if name == "distance" else 0)
    return [
        replace(
            plain,
            low=None if left is None else offsets[row] - left,
            high=None if right is None else offsets[row] + right,
            offset=offsets[row],
            key_stop=key_stops[row],
            query_stop=query_stops[row],
            key_visible=None if key_visible is None else key_visible[row],
            segments=None if segments is None else (segments[0][row], segments[1][row]),
            visible=None if visible is None else visible[row if visible.shape[0] > 1 else 0],
        )
        for row in range(batch)
    ]


def _own(tensor: Tensor, wide: torch.dtype) -> Tensor:
    """In memory of its own: a product of torch has other bits at an address that is no multiple of 64 bytes."""
    return tensor.to(wide).clone(memory_format=torch.contiguous_format)


def _four(tensor: Tensor) -> Tensor:
    return tensor[(None,) * (4 - tensor.dim())]


def _fold(tensor: Tensor, groups: int) -> Tensor:
    """(H,Q,N) -> (G, H/G Q, N): the query heads of a group as rows."""
    return tensor.reshape(groups, -1, tensor.shape[2])


def _row_bias(bias: Tensor | None, kind: str | None, row: int, wide: torch.dtype) -> Tensor | None:
    if bias is None:
        return None
    if kind != "dense":
        return bias.to(wide)
    values = _four(bias)
    return values[row if values.shape[0] > 1 else 0].to(wide)


class _Splits(torch.autograd.Function):
    @staticmethod
    def scores(q: Tensor, k: Tensor, values: Tensor | None, row: Row, part: slice, softcap: float | None, shape):
        """Scores (H,Q,n) of a split with -inf where hidden, the tanh of the cap, and the mask."""
        scores = (q @ k[:, part].mT).view(shape[1], shape[2], -1)
        bent = None
        if softcap is not None:
            bent = torch.tanh(scores / softcap)
            scores = softcap * bent
        if values is not None:
            scores = scores + row.added(values, shape[2], part)
        sight = row.sight(shape[2], part)
        return scores.masked_fill(~sight, -torch.inf), bent, sight

    @staticmethod
    def forward(ctx, query, key, value, bias, rows: list[Row], scale: float, softcap: float | None):
        wide = torch.promote_types(query.dtype, torch.float32)
        batch, heads, queries, _ = shape = query.shape
        groups, keys, features = value.shape[1:]
        output = torch.zeros(batch, heads, queries, features, dtype=wide)
        lse = torch.full((batch, heads, queries, 1), -torch.inf, dtype=wide)
        seen = torch.zeros(batch, heads, queries, 1, dtype=torch.bool)
        for b, row in enumerate(rows):
            q, k, v = _fold(_own(query[b], wide) * scale, groups), _own(key[b], wide), _own(value[b], wide)
            values = _row_bias(bias, row.bias, b, wide)
            outputs, sums = [], []
            for part in row.splits(queries, keys):
                scores, _, sight = _Splits.scores(q, k, values, row, part, softcap, shape)
                top = scores.amax(-1, keepdim=True)
                top = torch.where(top == -torch.inf, 0.0, top)
                shares = torch.exp(scores - top)
                total = shares.sum(-1, keepdim=True)
                product = (_fold(shares, groups) @ v[:, part]).view(heads, queries, features)
                outputs.append(product / torch.where(total > 0.0, total, 1.0))
                sums.append(top + torch.log(total))
                seen[b] |= sight.any(-1, keepdim=True)
            if outputs:
                lse[b] = torch.logsumexp(torch.stack(sums), 0)
                merged = sum(torch.exp(own - lse[b]) * mine for own, mine in zip(sums, outputs, strict=True))
                output[b] = torch.where(seen[b], merged, 0.0)
        ctx.save_for_backward(query, key, value, bias, output, lse, seen)
        ctx.rows, ctx.scale, ctx.softcap = rows, scale, softcap
        result = lse.squeeze(-1).to(torch.float32, copy=True)
        ctx.mark_non_differentiable(result)
        return output.to(query.dtype, copy=True), result

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, _):
        query, key, value, bias, output, lse, seen = ctx.saved_tensors
        shape, wide, (groups, keys, _) = query.shape, output.dtype, value.shape[1:]
        d_query, d_key, d_value = (torch.zeros(tensor.shape, dtype=wide) for tensor in (query, key, value))
        d_bias = torch.zeros(bias.shape, dtype=wide) if bias is not None and ctx.needs_input_grad[3] else None
        for b, row in enumerate(ctx.rows):
            q, k, v = _fold(_own(query[b], wide) * ctx.scale, groups), _own(key[b], wide), _own(value[b], wide)
            values = _row_bias(bias, row.bias, b, wide)
            g = torch.where(seen[b], _own(grad[b], wide), 0.0)
            level = torch.where(seen[b], lse[b], 0.0)
            delta = (g * output[b]).sum(-1, keepdim=True)
            for part in row.splits(shape[2], keys):
                scores, bent, _ = _Splits.scores(q, k, values, row, part, ctx.softcap, shape)
                shares = torch.exp(scores - level)
                d_value[b, :, part] += _fold(shares, groups).mT @ _fold(g, groups)
                d_shares = (_fold(g, groups) @ v[:, part].mT).view(scores.shape)
                d_scores = shares * (d_shares - delta)
                if d_bias is not None:
                    _add_bias_gradient(d_bias, d_scores, row, b, part)
                if bent is not None:
                    d_scores = d_scores * (1.0 - bent * bent)
                d_query[b] += (_fold(d_scores, groups) @ k[:, part]).view(shape[1:]) * ctx.scale
                d_key[b, :, part] += _fold(d_scores, groups).mT @ q
        d_bias = None if d_bias is None else d_bias.to(bias.dtype)
        return d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype), d_bias, None, None, None


def _add_bias_gradient(total: Tensor, d_scores: Tensor, row: Row, b: int, part: slice) -> None:
    if row.bias == "distance":
        index = row.index(d_scores.shape[1], part, total.shape[1])
        total.index_add_(1, index.reshape(-1), d_scores.reshape(total.shape[0], -1))
        return
    values = _four(total)
    target = _part(values[b if values.shape[0] > 1 else 0], part)
    for axis in range(3):
        if target.shape[axis] == 1:
            d_scores = d_scores.sum(axis, keepdim=True)
    target += d_scores


def attend(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V)."""
    check(inputs)
    bias = inputs.bias
    rows = _rows(inputs.mask, bias, inputs.query.shape[0])
    values = None if bias is None else bias.slopes if isinstance(bias, LinearBias) else bias.values
    output, lse = _Splits.apply(inputs.query, inputs.key, inputs.value, values, rows, inputs.scale, inputs.softcap)
    return AttentionOutput(output, lse=lse if inputs.return_lse else None)
