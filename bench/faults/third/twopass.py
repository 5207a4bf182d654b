"""Attention in tiles of queries and keys, in two passes over the keys. The first finds the log-sum-exp of each query, as the
online softmax does, the second the output; the backward pass is a third one.

    pass 1:  m' = max(m, max_j s_j)      l' = l e^(m - m') + sum_j e^(s_j - m')      lse = m + ln l
    pass 2:  output = sum_j e^(s_j - lse) v_j

Tiles that positions and lengths hide are not computed. Each tile has a generator for its dropout, and small tables of positions
are kept between calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from declaration import declared
from torch import Tensor
from torch.autograd.function import once_differentiable

from tfkit.plugin import AttentionInputs, AttentionOutput, DistanceBias, LinearBias, NoOptions, require_capabilities

ROWS, COLS = 72, 120
"""Queries and keys of one tile."""
TABLES = 12
"""Tables that are kept."""

BACKEND = declared(
    __name__,
    "Two passes over tiles of keys, with tables of positions that calls share.",
    reference="https://arxiv.org/abs/1805.02867",
    dropout=True,
    weights="detached",
    deterministic_backward=True,
)
check = require_capabilities(BACKEND.name, BACKEND.capabilities)


class _Tables:
    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], Tensor] = {}
        self.lock = threading.Lock()

    def get(self, name: tuple[int, ...], make: Callable[[], Tensor]) -> Tensor:
        with self.lock:
            if name not in self.kept:
                with torch.inference_mode(False):
                    table = make()
                if len(self.kept) >= TABLES:
                    self.kept.pop(next(iter(self.kept)))
                self.kept[name] = table
            return self.kept[name]


tables = _Tables()


def _four(tensor: Tensor) -> Tensor:
    return tensor[(None,) * (4 - tensor.dim())]


def _tile(tensor: Tensor, rows: slice, cols: slice) -> Tensor:
    """A tile of (B|1,H|1,Q|1,K|1); an axis of size 1 speaks of every place."""
    tensor = tensor if tensor.shape[2] == 1 else tensor[:, :, rows]
    return tensor if tensor.shape[3] == 1 else tensor[..., cols]


@dataclass
class Plan:
    """The numbers of a call, and copies of its mask."""

    sizes: tuple[int, int, int, int]  # B, H, Q, K
    window: tuple[int | None, int | None]
    offset: Tensor  # (B|1,1,1,1)
    lengths: list[Tensor | None]  # of queries and keys, (B,1,1,1)
    terms: list[Tensor]  # (B|1,H|1,Q|1,K|1)
    segments: tuple[Tensor, Tensor] | None  # (B,1,Q,1), (B,1,1,K)
    bias: str | None
    low: int
    numbers: tuple[float, float | None, float]  # scale, softcap, dropout
    seed: int

    def rows(self) -> list[slice]:
        return [slice(start, min(start + ROWS, self.sizes[2])) for start in range(0, self.sizes[2], ROWS)]

    def cols(self, rows: slice) -> list[slice]:
        """The tiles with a key that positions and lengths may show."""
        (left, right), begin, end = self.window, 0, self.sizes[3]
        if left is not None:
            begin = max(begin, int(self.offset.min()) + rows.start - left)
        if right is not None:
            end = min(end, int(self.offset.max()) + rows.stop + right)
        if self.lengths[1] is not None:
            end = min(end, int(self.lengths[1].max()))
        starts = range(begin // COLS * COLS, end, COLS)
        return [slice(start, min(start + COLS, self.sizes[3])) for start in starts]

    def distance(self, rows: slice, cols: slice) -> Tensor:
        """Key minus position of the query, (B|1,1,q,k)."""
        q, k = rows.stop - rows.start, cols.stop - cols.start
        steps = tables.get((q, k), lambda: torch.arange(k) - torch.arange(q)[:, None])
        return steps + (cols.start - rows.start - self.offset)

    def sight(self, rows: slice, cols: slice) -> Tensor:
        """True where a query sees a key, (B|1,H|1,q,k)."""
        sight = torch.ones(1, 1, rows.stop - rows.start, cols.stop - cols.start, dtype=torch.bool)
        if self.window != (None, None):
            distance = self.distance(rows, cols)
            if self.window[0] is not None:
                sight = sight & (distance >= -self.window[0])
            if self.window[1] is not None:
                sight = sight & (distance <= self.window[1])
        if self.lengths[0] is not None:
            sight = sight & (torch.arange(rows.start, rows.stop)[:, None] < self.lengths[0])
        if self.lengths[1] is not None:
            sight = sight & (torch.arange(cols.start, cols.stop) < self.lengths[1])
        if self.segments is not None:
            sight = sight & (self.segments[0][:, :, rows] == self.segments[1][..., cols])
        for term in self.terms:
            sight = sight & _tile(term, rows, cols)
        return sight

    def coins(self, rows: slice, cols: slice, wide: torch.dtype) -> Tensor | float:
        """The factors of dropout of a tile, (B,H,q,k)."""
        dropout = self.numbers[2]
        if not dropout:
            return 1.0
        place = rows.start // ROWS * -(-self.sizes[3] // COLS) + cols.start // COLS
        generator = torch.Generator().manual_seed(self.seed + place)
        shape = (*self.sizes[:2], rows.stop - rows.start, cols.stop - cols.start)
        return (torch.rand(shape, generator=generator) >= dropout).to(wide) / (1.0 - dropout)

    def scores(
        self, q: Tensor, k: Tensor, values: Tensor | None, rows: slice, cols: slice
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Scores of a tile with -inf where hidden, the tanh of the cap, and what is seen; q (B,G,H/G q,D) is scaled."""
        softcap, bent = self.numbers[1], None
        scores = (q @ k[:, :, cols].mT).reshape(*self.sizes[:2], rows.stop - rows.start, -1)
        if softcap is not None:
            bent = torch.tanh(scores / softcap)
            scores = softcap * bent
        if values is not None:
            scores = scores + self.added(values.to(q.dtype), rows, cols)
        sight = self.sight(rows, cols)
        return scores.masked_fill(~sight, -torch.inf), bent, sight

    def added(self, values: Tensor, rows: slice, cols: slice) -> Tensor:
        """The bias of a tile, (B|1,H|1,q|1,k|1)."""
        if self.bias == "dense":
            return _tile(_four(values), rows, cols)
        if self.bias == "linear":
            return values[:, None, None] * -self.distance(rows, cols).abs()
        return values[:, self.places(values, rows, cols)].transpose(0, 1)

    def places(self, values: Tensor, rows: slice, cols: slice) -> Tensor:
        """The places in a table of distances, (B|1,q,k)."""
        return (self.distance(rows, cols)[:, 0] - self.low).clamp(0, values.shape[1] - 1)

    def add_bias_gradient(self, total: Tensor, d_scores: Tensor, rows: slice, cols: slice) -> None:
        if self.bias == "linear":
            total -= (d_scores * self.distance(rows, cols).abs()).sum((0, 2, 3))
        elif self.bias == "distance":
            places = self.places(total, rows, cols).expand(self.sizes[0], -1, -1)
            total.index_add_(1, places.reshape(-1), d_scores.transpose(0, 1).reshape(total.shape[0], -1))
        else:
            target = _tile(_four(total), rows, cols)
            target += d_scores.sum_to_size(target.shape)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, values, plan: Plan, ask: bool):
        wide = torch.promote_types(query.dtype, torch.float32)
        (batch, heads, queries, _), groups, features = plan.sizes, *value.shape[1::2]
        k, v = key.to(wide), value.to(wide)
        output = torch.zeros(batch, heads, queries, features, dtype=wide)
        lse = torch.full((batch, heads, queries, 1), -torch.inf, dtype=wide)
        seen = torch.zeros(batch, heads, queries, 1, dtype=torch.bool)
        weights = torch.zeros(plan.sizes, dtype=query.dtype) if ask else None
        for rows in plan.rows():
            q = (query[:, :, rows].to(wide) * plan.numbers[0]).reshape(batch, groups, -1, query.shape[3])
            top, total = lse[:, :, rows].clone(), torch.zeros_like(lse[:, :, rows])
            for cols in plan.cols(rows):
                scores, _, sight = plan.scores(q, k, values, rows, cols)
                higher = torch.maximum(top, scores.amax(-1, keepdim=True))
                level = torch.where(higher == -torch.inf, 0.0, higher)
                total = total * torch.exp(top - level) + torch.exp(scores - level).sum(-1, keepdim=True)
                top = higher
                seen[:, :, rows] |= sight.any(-1, keepdim=True)
            lse[:, :, rows] = top + torch.log(total)
            for cols in plan.cols(rows):
                scores, _, _ = plan.scores(q, k, values, rows, cols)
                shares = torch.where(seen[:, :, rows], torch.exp(scores - lse[:, :, rows]), 0.0)
                if weights is not None:
                    weights[:, :, rows, cols] = shares.to(query.dtype)
                shares = shares * plan.coins(rows, cols, wide)
                product = shares.reshape(batch, groups, -1, shares.shape[3]) @ v[:, :, cols]
                output[:, :, rows] += product.view(batch, heads, -1, features)
        ctx.save_for_backward(query, key, value, values, output, lse, seen)
        ctx.plan = plan
        result = torch.where(seen, lse, -torch.inf).squeeze(-1).to(torch.float32, copy=True)
        ctx.mark_non_differentiable(result, *([] if weights is None else [weights]))
        return output.to(query.dtype, copy=True), result, weights

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, *_):
        query, key, value, values, output, lse, seen = ctx.saved_tensors
        plan, wide, (groups, features) = ctx.plan, lse.dtype, value.shape[1::2]
        (batch, heads, _, _), scale = plan.sizes, plan.numbers[0]
        d_query, d_key, d_value = (torch.zeros(tensor.shape, dtype=wide) for tensor in (query, key, value))
        d_values = torch.zeros(values.shape, dtype=wide) if ctx.needs_input_grad[3] else None
        with torch.autocast("cpu", enabled=False):
            k, v = key.to(wide), value.to(wide)
            for rows in plan.rows():
                q = (query[:, :, rows].to(wide) * scale).reshape(batch, groups, -1, query.shape[3])
                there = seen[:, :, rows]
                g = torch.where(there, grad[:, :, rows].to(wide), 0.0)
                level = torch.where(there, lse[:, :, rows], 0.0)
                delta = (g * output[:, :, rows]).sum(-1, keepdim=True)
                folded = g.reshape(batch, groups, -1, features)
                for cols in plan.cols(rows):
                    scores, bent, _ = plan.scores(q, k, values, rows, cols)
                    shares, coins = torch.exp(scores - level), plan.coins(rows, cols, wide)
                    d_value[:, :, cols] += (shares * coins).reshape(batch, groups, -1, shares.shape[3]).mT @ folded
                    d_shares = (folded @ v[:, :, cols].mT).view(shares.shape) * coins
                    d_scores = shares * (d_shares - delta)
                    if d_values is not None:
                        plan.add_bias_gradient(d_values, d_scores, rows, cols)
                    if bent is not None:
                        d_scores = d_scores * (1.0 - bent * bent)
                    flat = d_scores.reshape(batch, groups, -1, shares.shape[3])
                    d_query[:, :, rows] += (flat @ k[:, :, cols]).view(batch, heads, -1, query.shape[3]) * scale
                    d_key[:, :, cols] += flat.mT @ q
        d_values = None if d_values is None else d_values.to(values.dtype)
        return d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype), d_values, None, None


def attend(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V)."""
    check(inputs)
    mask, bias = inputs.mask, inputs.bias
    left, right = mask.window or (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    offset = mask.offset if isinstance(mask.offset, Tensor) else torch.tensor([mask.offset or 0])
    lengths = [
        None if n is None else n.to(torch.int64, copy=True)[:, None, None, None] for n in (mask.query_lengths, mask.key_lengths)
    ]
    terms = [] if mask.key_visible is None else [mask.key_visible[:, None, None].clone()]
    terms += [] if mask.visible is None else [_four(mask.visible).clone()]
    segments = None
    if mask.query_segments is not None and mask.key_segments is not None:
        query, key = (ids.to(torch.int64, copy=True) for ids in (mask.query_segments, mask.key_segments))
        segments = query[:, None, :, None], key[:, None, None]
    plan = Plan(
        sizes=(*inputs.query.shape[:3], inputs.key.shape[2]),
        window=(left, right),
        offset=offset.to(torch.int64, copy=True)[:, None, None, None],
        lengths=lengths,
        terms=terms,
        segments=segments,
        bias=None if bias is None else {DistanceBias: "distance", LinearBias: "linear"}.get(type(bias), "dense"),
        low=bias.low if isinstance(bias, DistanceBias) else 0,
        numbers=(inputs.scale, inputs.softcap, inputs.dropout),
        seed=int(torch.randint(2**62, ())) if inputs.dropout else 0,
    )
    values = None if bias is None else bias.slopes if isinstance(bias, LinearBias) else bias.values
    with torch.autocast("cpu", enabled=False):
        output, lse, weights = _Tiled.apply(inputs.query, inputs.key, inputs.value, values, plan, inputs.return_weights)
    return AttentionOutput(output, weights=weights, lse=lse if inputs.return_lse else None)
