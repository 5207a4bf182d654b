"""Some rows of the weight of a head: the logits of a search that may select a few ids of the vocabulary only."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from ...cpu.packed_weight import PackedWeight, active
from ...cpu.products import may_read
from ...cpu.small_batch import small_batch_linear


class HeadColumns:
    """x W_c^T + b_c, (..., M) -> (..., C), where W_c are the rows of W for C ids.

    The rows are copied in the first product. A head in a lower precision computes them in float32, so that what a row gets does
    not depend on the ids of other rows, among which the head would choose the logits to compute again.

    Args:
        head: the node of the logits.
        ids: (C,) the ids.
    """

    def __init__(self, head: nn.Module, ids: Tensor) -> None:
        self.head, self.ids = head, ids
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        self.packed: Any = PackedWeight()

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The logits of the ids.

        Args:
            x: (..., M).
            weight: (V, M), the same in every call.
            bias: (V,), or None.

        Returns:
            (..., C)
        """
        search = active.products
        if self.weight is None:
            self.weight = weight.detach().index_select(0, self.ids)
            self.bias = None if bias is None else bias.detach().index_select(0, self.ids)
        if search is None or not x.is_cpu:
            return functional.linear(x, self.weight, self.bias)
        if search.pack is not None and search.multiply is not None and may_read(x, self.weight, self.bias):
            if isinstance(self.packed, PackedWeight):  # a copy of its own, which nobody writes to
                self.packed = search.pack(self.weight)
            return search.multiply(x.reshape(-1, x.shape[-1]), self.packed, self.bias).view(*x.shape[:-1], len(self.ids))
        return small_batch_linear(x, self.weight, self.bias, self.packed, search)
