"""What a position scheme does, as numbers, read from its module through the methods of the contract only.

    embeddings      embed(0): the vector of each position, (L, P)
    queries_keys    rotate(e_f) at each position t, for each feature f: the angle atan2(sum of the others, feature f), (L, D)
    scores          the bias of each head by distance, key position - query position, (H, R)

The similarity of two positions is the cosine of their vectors; of rotations, that of a query and a key of ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..attention.positions import PositionRange
from ..attention.rendering import dense_bias
from ..attention.types import Shapes
from ..slots.position import Place


@dataclass(frozen=True)
class PositionValues:
    """The values of one scheme at one place.

    Args:
        name: where the scheme acts: a node, `encoder`, or a site, `encoder.0.self_attention`.
        kind: the name of the scheme.
        place: embeddings, queries_keys or scores.
        learned: the scheme has weights.
        table: vectors (L, P) or angles (L, D) by position; bias (H, R) by distance.
        similarity: (L, L), the similarity of positions; None for scores.
        first: the first position of the table, or its first distance.
    """

    name: str
    kind: str
    place: Place
    learned: bool
    table: Tensor
    similarity: Tensor | None
    first: int = 0


def embedded(module: Any, width: int, appended: int, positions: PositionRange) -> tuple[Tensor, Tensor]:
    """The vectors that a scheme adds to embeddings of zeros, or appends to them, and their similarity."""
    zeros = torch.zeros(1, positions.queries, width, device=positions.device)
    table = module.embed(zeros, positions)[0]
    table = table[:, width:] if appended else table
    unit = torch.nn.functional.normalize(table.double(), dim=-1)
    return table, unit @ unit.T


def rotated(module: Any, head_dim: int, positions: PositionRange) -> tuple[Tensor, Tensor]:
    """The angle by which each feature is rotated at each position, and the similarity of positions."""
    tables = module.prepare(positions)
    unit = torch.eye(head_dim, device=positions.device)[None, :, None]
    basis = unit.expand(1, head_dim, positions.queries, head_dim)  # one head for each feature
    turned = module.rotate(basis, basis, tables)[0][0].double()  # (D, L, D)
    cosine = turned.diagonal(dim1=0, dim2=2)  # (L, D)
    angle = torch.atan2(turned.sum(-1).T - cosine, cosine)
    ones = torch.ones(1, 1, positions.queries, head_dim, device=positions.device)
    query, key = (tensor[0, 0].double() for tensor in module.rotate(ones, ones, tables))
    query, key = (torch.nn.functional.normalize(tensor, dim=-1) for tensor in (query, key))
    return angle, query @ key.T


def bias_by_distance(module: Any, heads: int, head_dim: int, scale: float, causal: bool, positions: PositionRange) -> Tensor:
    """The bias of each head, (H, R), at the distances from 1 - L to 0, or to L - 1. A bias that depends on the query is that of
    a query of ones."""
    length = positions.queries
    query = torch.ones(1, heads, length, head_dim, device=positions.device)
    bias = module.bias(query, module.prepare(positions), scale)
    dense = dense_bias(bias, 0, Shapes(1, heads, length, length, query.dtype, query.device))
    dense = dense.expand(1, heads, length, length)[0]
    before = dense[:, -1]
    return before if causal else torch.cat([before, dense[:, 0, 1:]], dim=1)
