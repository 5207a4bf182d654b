"""A cell as tensors, and what it takes: visible pairs, floating-point operations, bytes.

    flops = 4 D pairs forward, 10 D pairs backward        pairs: visible (query, key) pairs over batch and query heads
    bytes = query + key + value + output                  for decoding, which is bound by reading the cache

Hidden pairs count for nothing, whether a backend computes them or not. Queries, keys and values lie in memory as a layer's
projections give them, (B, L, H, D).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, AttentionRequest, Bias, DistanceBias, LinearBias, Mask

from ..attention.compare import leaves_of, request_of as asked_of
from .cells import Cell, Scale, drawn, even

FORWARD, BACKWARD = 4, 10
T5_REACH = 128
"""T5's largest distance (https://arxiv.org/abs/1910.10683): beyond it, every distance shares one value."""


@dataclass(frozen=True)
class Call:
    """One call, the gradient of its output, and what it takes."""

    cell: Cell
    inputs: AttentionInputs
    grad_output: Tensor
    pairs: int
    flops: int
    bytes: int

    @property
    def leaves(self) -> list[Tensor]:
        """What gradients are taken of."""
        return list(leaves_of(self.inputs).values())

    def shape(self) -> dict[str, int]:
        B, H, Q, D = self.inputs.query.shape
        G, K = self.inputs.key.shape[1:3]
        return {"batch": B, "heads": H, "kv_heads": G, "queries": Q, "keys": K, "head_dim": D}


def call_of(cell: Cell, scale: Scale, dtype: torch.dtype, device: str, seed: int) -> Call:
    """The call of a cell, the same for the same seed."""
    generator = torch.Generator(device).manual_seed(seed)
    B, (H, G), D = cell.batch(scale), cell.heads(scale), cell.head_dim
    mask, Q, K = _mask(cell, B, device, seed)

    def tensor(length: int, heads: int) -> Tensor:
        leaf = torch.randn(B, length, heads, D, generator=generator, device=device).to(dtype).transpose(1, 2)
        return leaf.requires_grad_(cell.training)

    query, key, value = tensor(Q, H), tensor(K, G), tensor(K, G)
    inputs = AttentionInputs(query, key, value, mask, D**-0.5, bias=_bias(cell, H, generator, device), dropout=cell.dropout)
    pairs = H * visible_pairs(mask, B, Q, K)
    flops = (FORWARD + BACKWARD * cell.training) * D * pairs
    moved = dtype.itemsize * (2 * query.numel() + key.numel() + value.numel())
    return Call(cell, inputs, tensor(Q, H).detach(), pairs, flops, moved)


def request_of(call: Call, capability: tuple[int, int] | None) -> AttentionRequest:
    """What the call asks of a backend."""
    return replace(asked_of(call.inputs), cuda_capability=capability)


def visible_pairs(mask: Mask, batch: int, queries: int, keys: int) -> int:
    """(query, key) pairs that a mask of causality, a window and lengths shows, over the batch, for one head."""
    offset = mask.offset if isinstance(mask.offset, int) else 0
    position = offset + torch.arange(queries)[None]
    first, end = torch.zeros(batch, queries, dtype=torch.long), torch.full((batch, queries), keys)
    if mask.causal:
        end = torch.minimum(end, position + 1)
    left, right = mask.window or (None, None)
    if left is not None:
        first = torch.maximum(first, position - left)
    if right is not None:
        end = torch.minimum(end, position + right + 1)
    if mask.key_lengths is not None:
        end = torch.minimum(end, mask.key_lengths.cpu()[:, None])
    counts = (end - first).clamp(min=0)
    if mask.query_lengths is not None:
        counts = counts * (torch.arange(queries)[None] < mask.query_lengths.cpu()[:, None])
    return int(counts.sum())


def _mask(cell: Cell, batch: int, device: str, seed: int) -> tuple[Mask, int, int]:
    """The mask as a stack makes it, with the lengths of queries and keys."""
    if cell.text is None:
        queries = 1 if cell.decode else cell.length
        window = None if cell.window is None else (cell.window - 1, 0)
        return Mask(causal=cell.causal, window=window, offset=cell.length - queries), queries, cell.length
    pairs = even(cell.length, batch, seed) if cell.text == "even" else drawn(cell.text, batch, seed)
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    rows, columns = {"encoder": (sources, sources), "decoder": (targets, targets), "cross": (targets, sources)}[cell.side]
    lengths = torch.tensor(columns, device=device)
    query_terms: dict[str, Any] = {"query_lengths": lengths} if cell.causal else {}
    return Mask(causal=cell.causal, offset=0, key_lengths=lengths, **query_terms), max(rows), max(columns)


def _bias(cell: Cell, heads: int, generator: torch.Generator, device: str) -> Bias | None:
    if cell.bias == "distance":
        values = torch.randn(heads, 2 * T5_REACH + 1, generator=generator, device=device)
        return DistanceBias(values.requires_grad_(cell.training), -T5_REACH)
    if cell.bias == "linear":
        return LinearBias(2.0 ** (-8.0 * torch.arange(1, heads + 1, device=device) / heads))
    return None
