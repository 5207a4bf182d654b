"""What the tensors of a case hold, and how they lie in memory.

Regimes, each a way in which attention goes wrong while random numbers look right:

    normal, small, large, huge    queries times 1, 1e-3, 6, 30: flat to one-hot softmax
    peaked          each query is near one key            offset_values   values around 30: cancellation in dP - D
    wide_values     values over many orders of magnitude  ties            all scores equal
    lattice         small whole numbers: many exact ties  sink            one key draws most of the weight
    high_values     values near the largest of float16    low_values      values near its smallest normal number
    high_gradients  values nearly equal, output gradients of hundreds: dO . O is beyond float16, no gradient is

Layouts of query, key and value: `contiguous`; `heads_last` (B,L,H,D) as projections leave it; `features_first`, whose last
axis is not the dense one; `sliced` out of larger tensors; `interleaved`, (B,L,3,H,D) as one projection of all three leaves it;
`shifted` by five elements, to an address of no large power of two; `expanded`, one batch row read by all, and `one_head`, one
head read by all (stride 0).
Those of the output's gradient: `contiguous`, `odd` (no axis where it is expected), `expanded` (stride 0, what `sum` sends),
`expanded_features` and `expanded_queries` (what a sum over one axis sends).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

REGIMES = (
    "normal", "small", "large", "peaked", "offset_values", "wide_values", "ties", "lattice", "sink", "huge", "high_values",
    "low_values", "high_gradients",
)  # fmt: skip
LAYOUTS = ("contiguous", "heads_last", "features_first", "sliced", "expanded", "interleaved", "shifted", "one_head")
REPEATING = frozenset({"expanded", "one_head"})
"""Layouts in which several indices name one number."""
GRAD_LAYOUTS = ("contiguous", "odd", "expanded", "expanded_features", "expanded_queries")


def drawn_call(regime: str, sizes: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query (B,H,Q,D), key (B,G,K,D) and value (B,G,K,V) of a regime, float64. Small ones are kept, because checks draw the
    same call again and again: no caller may write to them."""
    B, H, G, Q, K, D, V = sizes
    small = B * (H * Q * D + G * K * (D + V)) <= MAX_DRAWN
    return (_kept_call if small else _drawn_call)(regime, sizes, seed)


MAX_DRAWN = 1 << 16
"""The most numbers of a call that are kept."""


def _drawn_call(regime: str, sizes: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    B, H, G, Q, K, D, V = sizes
    draw = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=draw, dtype=torch.float64)

    query, key, value = normal(B, H, Q, D), normal(B, G, K, D), normal(B, G, K, V)
    if regime in FACTORS:
        query = query * FACTORS[regime]
    elif regime == "peaked":
        near = torch.randint(0, K, (Q,), generator=draw)
        query = 4 * key.repeat_interleave(H // G, 1)[:, :, near] + 0.1 * query
    elif regime == "offset_values":
        value = value + 30
    elif regime == "high_gradients":
        value = value / 64 + 30
    elif regime in VALUE_FACTORS:
        value = value * VALUE_FACTORS[regime]
    elif regime == "wide_values":
        value = value * torch.exp(3 * normal(B, G, K, 1).clamp(-2.5, 2.5))
    elif regime == "lattice":
        query, key, value = (tensor.mul(1.5).round().clamp(-2, 2) for tensor in (query, key, value))
    elif regime == "sink":
        key[:, :, 0] = 0
        key[:, :, 0, 0] = 8
        query[..., 0] = 4 * query[..., 0].abs()
    elif regime != "normal":
        raise KeyError(f"unknown regime {regime}")
    return query, key, value


_kept_call = lru_cache(maxsize=16)(_drawn_call)
FACTORS = {"small": 1e-3, "large": 6.0, "huge": 30.0, "ties": 0.0}


VALUE_FACTORS = {"high_values": 2.0**13, "low_values": 2.0**-14}
GRADIENT_FACTORS = {"high_values": 2.0**-13, "low_values": 2.0**10, "high_gradients": 2.0**9}
"""Of the output's gradient, so that no gradient of a query or key is beyond float16 or below its normal numbers."""


def arranged(tensor: Tensor, layout: str, device: str) -> Tensor:
    """The same numbers in another layout, as a leaf of its own. `expanded` and `one_head` repeat the first row or head."""
    return ARRANGE[layout](tensor.to(device)).detach()


def grad_arranged(tensor: Tensor, layout: str, device: str) -> Tensor:
    """An output gradient (B,H,Q,V) in another layout."""
    return GRAD_ARRANGE[layout](tensor.to(device))


def _sliced(tensor: Tensor) -> Tensor:
    larger = torch.full([size + 2 for size in tensor.shape], 7.0, dtype=tensor.dtype, device=tensor.device)
    inside = larger[tuple(slice(1, 1 + size) for size in tensor.shape)]
    return inside.copy_(tensor)


def _expanded(tensor: Tensor) -> Tensor:
    return tensor[:1].contiguous().expand(tensor.shape)


def _one_head(tensor: Tensor) -> Tensor:
    return tensor[:, :1].contiguous().expand(tensor.shape)


def _interleaved(tensor: Tensor) -> Tensor:
    B, H, L, D = tensor.shape
    whole = torch.full((B, L, 3, H, D), 7.0, dtype=tensor.dtype, device=tensor.device)
    return whole[:, :, 1].transpose(1, 2).copy_(tensor)


def _shifted(tensor: Tensor) -> Tensor:
    whole = torch.full((tensor.numel() + 5,), 7.0, dtype=tensor.dtype, device=tensor.device)
    return whole[5:].view(tensor.shape).copy_(tensor)


ARRANGE: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda tensor: tensor.contiguous(),
    "heads_last": lambda tensor: tensor.transpose(1, 2).contiguous().transpose(1, 2),
    "features_first": lambda tensor: tensor.mT.contiguous().mT,
    "sliced": _sliced,
    "expanded": _expanded,
    "interleaved": _interleaved,
    "shifted": _shifted,
    "one_head": _one_head,
}
GRAD_ARRANGE: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda tensor: tensor.contiguous(),
    "odd": lambda tensor: tensor.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
    "expanded": lambda tensor: tensor[:1, :1, :1, :1].expand(tensor.shape),
    "expanded_features": lambda tensor: tensor[..., :1].contiguous().expand(tensor.shape),
    "expanded_queries": lambda tensor: tensor[:, :, :1].contiguous().expand(tensor.shape),
}
