"""Relative position buckets, Raffel et al. 2020, section 2.1 (https://arxiv.org/abs/1910.10683):

    bias[h, i, j] = table[bucket(j - i), h]

With n buckets for one direction and e = n // 2 of them exact, a distance d >= 0 has the bucket

    d                                                                                       where d < e
    min(n - 1, e + floor((n - e) log(d / e) / log(max_distance / e)))                       otherwise

A causal stack uses all buckets for keys before the query; any other stack uses one half for each side. All distances from
`max_distance` up share a bucket, so the module gathers the values of -max_distance to max_distance once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...attention.positions import PositionRange
from ...plugin import DistanceBias
from ...plugin.model_parts import MethodModule
from ...slots.position import PositionSite
from .entries_scores import RelativeT5Options


def bucket(distance: Tensor, buckets: int, max_distance: int, causal: bool) -> Tensor:
    """The bucket of each distance j - i, integers of any shape."""
    if causal:
        return _one_sided(-distance.clamp(max=0), buckets, max_distance)
    after = (distance > 0) * (buckets // 2)
    return after + _one_sided(distance.abs(), buckets // 2, max_distance)


def _one_sided(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    exact = buckets // 2
    # Logarithms of float64 tensors: ONNX would round those of Python to float32, which moves the edges of buckets. If their
    # ratio is a whole number, rounding may give slightly less; 1e-9 keeps `floor` at the whole number.
    low, high = (distance.new_full((), edge).double().log() for edge in (exact, max_distance))
    ratio = (torch.log(distance.clamp(min=1).double()) - low) / (high - low)
    wide = exact + (ratio * (buckets - exact) + 1e-9).floor().to(torch.int64)
    return torch.where(distance < exact, distance, wide.clamp(max=buckets - 1))


class RelativeT5(MethodModule):
    """A table (buckets, H) of values, one per head and bucket."""

    def __init__(self, buckets: int, max_distance: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.max_distance, self.causal = max_distance, causal
        self.table = nn.Parameter(torch.empty(buckets, heads))

    def prepare(self, span: PositionRange) -> Tensor:
        """The bucket of every distance from -max_distance up, (R,)."""
        end = 0 if self.causal else self.max_distance
        distance = torch.arange(-self.max_distance, end + 1, device=span.device)
        return bucket(distance, self.table.shape[0], self.max_distance, self.causal)

    def bias(self, query: Tensor, tables: Tensor, scale: float) -> DistanceBias:
        """The value of every head and distance, (H,R). It depends on neither query nor scale."""
        return DistanceBias(nn.functional.embedding(tables, self.table).t(), low=-self.max_distance)

    def extra_repr(self) -> str:
        buckets, heads = self.table.shape
        return f"buckets={buckets}, max_distance={self.max_distance}, heads={heads}, causal={self.causal}"


def build(options: RelativeT5Options, site: PositionSite) -> nn.Module:
    """The table as a module."""
    return RelativeT5(options.buckets, options.max_distance, site.heads, site.causal)
