"""The layers with large weights: `Linear`, y = x W^T + b, and `Embedding`, whose table may be the weight of logits too.

The product is chosen here, inside `forward` (cpu/small_batch.py). So a model is the sum of its module calls: hooks, adapters,
sharding, `torch.compile` and `tfkit verify` see what runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .cpu.packed_weight import PackedWeight
from .cpu.small_batch import fast_linear
from .divided_vocabulary import is_divided, logits_of_divided, lookup


@dataclass(frozen=True)
class Head:
    """What token logits compute with the weight (V, M) of a layer that they call.

    Args:
        bias: (V,), added to that of the layer; or None.
        product: takes x (..., M), W and b, and replaces x W^T + b; or None.
    """

    bias: Tensor | None = None
    product: Callable[[Tensor, Tensor, Tensor | None], Tensor] | None = None

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None, packed: PackedWeight | None) -> Tensor:
        """x (..., M), W (V, M), b (V,) or None -> (..., V), or what `product` returns."""
        if self.bias is not None:
            own = self.bias if self.bias.dtype == weight.dtype else self.bias.to(weight.dtype)
            bias = own if bias is None else bias + own
        if self.product is not None:
            return self.product(x, weight, bias)
        return logits_of_divided(x, weight, bias) if is_divided(weight) else fast_linear(x, weight, bias, packed)


class Linear(nn.Linear):
    """`torch.nn.Linear` with the fastest product of this processor, (..., in) -> (..., out)."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.packed = PackedWeight()

    def forward(self, input: Tensor, head: Head | None = None) -> Tensor:
        """x W^T + b; with `head`, what it computes with W and b."""
        weight = self.weight
        packed = self.packed if self._parameters.get("weight") is weight else None
        if head is not None:
            return head.compute(input, weight, self.bias, packed)
        return fast_linear(input, weight, self.bias, packed)

    def train(self, mode: bool = True) -> Linear:
        """As in `nn.Module`. Training frees the packed copies."""
        if mode:
            self.packed.clear()
        return super().train(mode)


class Embedding(nn.Embedding):
    """`torch.nn.Embedding`, ids (B, L) -> (B, L, M). Called with a `head`, its table is the weight of logits."""

    def __init__(self, num_embeddings: int, embedding_dim: int, weight: Tensor | None = None) -> None:
        super().__init__(num_embeddings, embedding_dim, _weight=weight)
        self.packed = PackedWeight()

    def forward(self, input: Tensor, head: Head | None = None) -> Tensor:
        """The rows of the ids; with `head`, what it computes with x (..., M) and the table (V, M)."""
        weight = self.weight
        if head is None:
            return lookup(input, weight)
        return head.compute(input, weight, None, self.packed if self._parameters.get("weight") is weight else None)

    def train(self, mode: bool = True) -> Embedding:
        """As in `nn.Module`. Training frees the packed copies."""
        if mode:
            self.packed.clear()
        return super().train(mode)


def head_of_table(table: nn.Module, x: Tensor, head: Head) -> Tensor:
    """Logits of x (..., M) by the table of another node. A table of another library, such as an embedding with an adapter,
    takes ids alone: the rows of all ids are then the weight."""
    if isinstance(table, Embedding):
        return table(x, head)  # type: ignore[no-any-return]
    weight: Any = table.weight
    return head.compute(x, table(torch.arange(weight.shape[0], device=x.device)), None, None)
