"""Projections that only select parts of the input, so that a module with projections is a plain attention function.
The field report and its scripts use these modules only through the files beside this one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def selects(rows: int, width: int, start: int, like: Tensor) -> Tensor:
    """(rows, width): the product with it reads `rows` features from `start` on."""
    weight = torch.zeros(rows, width, dtype=like.dtype, device=like.device)
    weight[:, start : start + rows] = torch.eye(rows, dtype=like.dtype, device=like.device)
    return weight


def joined(tensor: Tensor) -> Tensor:
    """(B, H, S, D) as (B, S, H * D)."""
    return tensor.transpose(1, 2).flatten(2)


def heads(tensor: Tensor, number: int) -> Tensor:
    """(B, S, H * D) as (B, H, S, D)."""
    return tensor.unflatten(-1, (number, -1)).transpose(1, 2)


def square(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """A call with as many queries as keys that has the given call's output in its first rows: added keys are hidden."""
    Q, K = query.shape[2], key.shape[2]
    if Q == K:
        return query, key, value, mask
    more = max(Q, K)
    if mask is None:
        mask = torch.ones(1, 1, Q, K, dtype=torch.bool, device=query.device)
        mask = mask.tril() if causal else mask
    hidden = False if mask.dtype == torch.bool else -torch.inf
    mask = pad(mask.expand(*mask.shape[:2], Q, K), (0, more - K), value=hidden)
    # An added query sees the first key.
    first = torch.arange(more, device=query.device) == 0
    row = first if mask.dtype == torch.bool else torch.where(first, 0.0, -torch.inf).to(mask.dtype)
    mask = torch.cat([mask, row.expand(*mask.shape[:2], more - Q, more)], 2)
    query, key, value = (pad(each, (0, 0, 0, more - each.shape[2])) for each in (query, key, value))
    return query, key, value, mask


class Part(torch.nn.Module):
    """In the place of a projection: `width` features of the input from `start` on. A product would mix gradients of heads."""

    def __init__(self, start: int, width: int) -> None:
        super().__init__()
        self.part = slice(start, start + width)

    def forward(self, x: Tensor) -> Tensor:
        return x[..., self.part]
