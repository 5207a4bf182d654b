"""Position schemes that add a bias to attention scores, by the distance from query to key."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...attention.positions import PositionRange
from ...plugin import DenseBias, DistanceBias, LinearBias, NoOptions
from ...plugin.model_parts import MethodModule
from ...slots.position import PositionSite
from .entries import RelativeShawOptions, RelativeT5Options


def slopes(heads: int, device: torch.device) -> Tensor:
    """The slopes of all heads, (H,) float32."""
    power = 2 ** (heads.bit_length() - 1)
    first = torch.arange(1, power + 1, dtype=torch.float64, device=device) * (-8 / power)
    between = (torch.arange(heads - power, dtype=torch.float64, device=device) + 0.5) * (-8 / power)
    return torch.exp2(torch.cat((first, between))).to(torch.float32)


class Alibi(MethodModule):
    """Attention with linear biases, Press et al. 2022, section 3 (https://arxiv.org/abs/2108.12409):

        bias[h, i, j] = -slope_h |j - i|

        slope_h = 2^(-8h/H), h = 1 .. H                                        where H is a power of two
        otherwise the slopes of P heads, P the largest power of two below H, then slopes 1, 3, 5, ... of 2P heads

    The second rule is from the authors' code. Without a causal mask the penalty is symmetric.

    The slopes of `heads` heads, as a bias.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def prepare(self, span: PositionRange) -> tuple[Tensor, Tensor | None]:
        """The slopes (H,), and the distances (B,1,Q,K) if they are not those of the indices."""
        return slopes(self.heads, span.device), span.distances() if span.has_own_distances else None

    def bias(self, query: Tensor, tables: tuple[Tensor, Tensor | None], scale: float) -> LinearBias | DenseBias:
        """The bias of a call. It depends on neither query nor scale."""
        slopes, distances = tables
        return LinearBias(slopes) if distances is None else DenseBias(-slopes.view(-1, 1, 1) * distances.abs())

    def extra_repr(self) -> str:
        return f"{self.heads}"


def alibi(options: NoOptions, site: PositionSite) -> nn.Module:
    """The scheme for the heads of a site."""
    return Alibi(site.heads)


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
    """Relative position buckets, Raffel et al. 2020, section 2.1 (https://arxiv.org/abs/1910.10683):

        bias[h, i, j] = table[bucket(j - i), h]

    With n buckets for one direction and e = n // 2 of them exact, a distance d >= 0 has the bucket

        d                                                                                       where d < e
        min(n - 1, e + floor((n - e) log(d / e) / log(max_distance / e)))                       otherwise

    A causal stack uses all buckets for keys before the query; any other stack uses one half for each side. All distances from
    `max_distance` up share a bucket, so the module gathers the values of -max_distance to max_distance once.

    A table (buckets, H) of values, one per head and bucket.
    """

    def __init__(self, buckets: int, max_distance: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.max_distance, self.causal = max_distance, causal
        self.table = nn.Parameter(torch.empty(buckets, heads))

    def prepare(self, span: PositionRange) -> Tensor:
        """The bucket of every distance from -max_distance up, (R,); of every pair, (B,1,Q,K), if distances are not those of
        the indices."""
        end = 0 if self.causal else self.max_distance
        distance = torch.arange(-self.max_distance, end + 1, device=span.device)
        distance = span.distances() if span.has_own_distances else distance
        return bucket(distance, self.table.shape[0], self.max_distance, self.causal)

    def bias(self, query: Tensor, tables: Tensor, scale: float) -> DistanceBias | DenseBias:
        """The value of every head and distance, (H,R), or pair. It depends on neither query nor scale."""
        values = nn.functional.embedding(tables, self.table)
        if tables.dim() > 1:
            return DenseBias(values.squeeze(1).permute(0, 3, 1, 2))
        return DistanceBias(values.t(), low=-self.max_distance)

    def extra_repr(self) -> str:
        buckets, heads = self.table.shape
        return f"buckets={buckets}, max_distance={self.max_distance}, heads={heads}, causal={self.causal}"


def relative_t5(options: RelativeT5Options, site: PositionSite) -> nn.Module:
    """The table as a module."""
    return RelativeT5(options.buckets, options.max_distance, site.heads, site.causal)


class RelativeShaw(MethodModule):
    """Relative position representations, Shaw et al. 2018, equation 4 (https://arxiv.org/abs/1803.02155), the key term:

        score[h, i, j] = scale q_i . (k_j + a[clip(j - i, -m, m)]) = scale q_i . k_j + bias[h, i, j]
        bias[h, i, j]  = scale q_i . a[clip(j - i, -m, m)]

    All heads share the vectors a. The paper's value term (equation 3) adds vectors to the values, which the attention contract
    cannot express. The paper found no loss with the key term alone (table 3).

    A table (2 max_distance + 1, D) of vectors, one per clipped distance.
    """

    def __init__(self, max_distance: int, head_dim: int) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))

    def prepare(self, span: PositionRange) -> Tensor:
        """The row of the table for each query and key, (Q, K) or (B, 1, Q, K)."""
        return span.distances().clamp(-self.max_distance, self.max_distance) + self.max_distance

    def bias(self, query: Tensor, tables: Tensor, scale: float) -> DenseBias:
        """Query (B,H,Q,D) to the bias (B,H,Q,K)."""
        by_distance = functional.linear(query, self.table) * scale  # (B,H,Q,2m+1): one product per distance, not per key
        return DenseBias(by_distance.gather(3, tables.expand(*query.shape[:2], -1, -1)))

    def extra_repr(self) -> str:
        return f"max_distance={self.max_distance}, head_dim={self.table.shape[1]}"


def relative_shaw(options: RelativeShawOptions, site: PositionSite) -> nn.Module:
    """The table as a module."""
    return RelativeShaw(options.max_distance, site.head_dim)
