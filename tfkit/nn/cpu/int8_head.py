"""Logits over a vocabulary in int8. The largest of each row, among which a search chooses, are computed again in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from .int8 import Int8Kernel, Int8Weight

CANDIDATES = 8
"""Logits of a row that are computed again. A beam search with k beams reads the 2 k largest of its k rows together."""
GROUP = 16
"""Numbers in a group. The largest logits are in the groups with the largest maxima: searching these is faster than `topk`."""


class Int8Head:
    """The product of a head.

    Args:
        weight: (vocab_size, M) float32.
        kernel: how products are computed.
    """

    def __init__(self, weight: Tensor, kernel: Int8Kernel) -> None:
        self.int8 = Int8Weight(weight, kernel)

    @torch.no_grad()
    def logits(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b, its largest elements in float32.

        Args:
            x: (..., M) float32.
            weight: (vocab_size, M) float32, of which single rows are read.
            bias: (vocab_size,), or None.

        Returns:
            (..., vocab_size)
        """
        rows = x.reshape(-1, x.shape[-1])
        found = self.int8.product(rows)
        if bias is not None:
            found += bias
        if found.numel():
            chosen = largest(found, CANDIDATES)  # (N, CANDIDATES)
            near = weight.index_select(0, chosen.flatten()).view(*chosen.shape, -1)  # (N, CANDIDATES, M)
            exact = near.mul_(rows[:, None]).sum(2)
            found.scatter_(1, chosen, exact if bias is None else exact.add_(bias[chosen]))
        return found.view(*x.shape[:-1], found.shape[1])


def largest(scores: Tensor, count: int) -> Tensor:
    """The indices (N, count) of the largest of scores (N, V), in any order; all if V is smaller."""
    V = scores.shape[1]
    groups = V // GROUP
    if groups <= 2 * count:
        return scores.topk(min(count, V), 1, sorted=False).indices
    grouped = groups * GROUP
    maxima = scores[:, :grouped].unflatten(1, (GROUP, groups)).amax(1)  # type: ignore[no-untyped-call]
    members = largest(maxima, count)[:, :, None] + torch.arange(0, grouped, groups)  # of group g: g, g + groups, ...
    index = torch.cat([members.flatten(1), torch.arange(grouped, V).expand(len(scores), -1)], 1)
    return index.gather(1, scores.gather(1, index).topk(count, 1, sorted=False).indices)
