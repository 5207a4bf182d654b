"""Some rows of the weight of a head: the logits of a search that may select a few ids of the vocabulary only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...cpu.low_precision import recording_lists
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
        self.lists: Tensor | None = None
        """(B, C) the ids of each row in a step of fixed shapes, as in `ListedColumns`."""

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


class ListedColumns:
    """x W_c^T + b_c where the rows W_c are those of a list of ids for each sentence, in a step of fixed shapes: S lists of C
    ids, of which -1 are none; their logits are -inf. The step reads and selects places in these lists.

    Args:
        head: the node of the logits.
        sentences: S.
        capacity: C.
        device: of the model.
    """

    ids = None
    """Another library's map, which computes the logits of all ids, has no such step."""

    def __init__(self, head: nn.Module, sentences: int, capacity: int, device: torch.device) -> None:
        self.head = head
        self.lists = torch.full((sentences, capacity), -1, dtype=torch.int64, device=device)
        self.names = torch.zeros_like(self.lists)
        self.starts = capacity * torch.arange(sentences, device=device)[:, None]

    def load(self, lists: Tensor) -> None:
        """Set the first lists (S', C')."""
        self.lists.fill_(-1)
        self.lists[: len(lists), : lists.shape[1]] = lists
        self.names.copy_(self.lists.clamp(min=0))

    def ids_at(self, places: Tensor) -> Tensor:
        """The ids at places (N, 1) in the lists, of N / S rows for each sentence."""
        at = places.view(len(self.starts), -1) + self.starts
        return self.names.view(-1).index_select(0, at.flatten())[:, None]

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The logits.

        Args:
            x: (N, 1, M).
            weight: (V, M).
            bias: (V,), or None.

        Returns:
            (N, 1, C)
        """
        record, rows = recording_lists.get(), x.flatten(0, 1)
        logits = listed_logits(rows, self.lists, weight, bias) if record is None else record(rows, self.lists, weight, bias)
        return logits[:, None]


def listed_logits(x: Tensor, lists: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b for lists (S, C) of ids, of rows x (N, M): (N, C), -inf where an id is below 0."""
    names = lists.clamp(min=0)
    taken = weight.index_select(0, names.flatten()).view(*lists.shape, -1)  # (S, C, M)
    logits = x.view(len(lists), -1, x.shape[1]) @ taken.mT  # (S, N / S, C)
    logits = logits if bias is None else logits + bias[names][:, None]
    return logits.masked_fill((lists < 0)[:, None], -torch.inf).flatten(0, 1)
