"""Embeddings and logits with a table (V, M) whose rows are divided among ranks, as a DTensor of torch.

A rank looks up the ids of its rows, with zeros for others, and the sum over the ranks is the embedding. Logits are computed
for the rows of each rank and gathered. Shoeybi et al. 2019, section 3 (https://arxiv.org/abs/1909.08053)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional


def is_divided(weight: Tensor) -> bool:
    """Whether the rows of a weight are divided among ranks."""
    return type(weight) is not nn.Parameter and hasattr(weight, "placements")


def lookup(ids: Tensor, weight: Tensor) -> Tensor:
    """ids (B, L), weight (V, M), whole or divided -> (B, L, M), whole on every rank."""
    if not is_divided(weight):
        return functional.embedding(ids, weight)
    return _whole(functional.embedding(_replicated(ids, weight), weight))


def logits_of_divided(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (B, L, M), weight (V, M) divided -> (B, L, V), whole on every rank."""
    logits = _whole(functional.linear(_replicated(x, weight), weight))
    return logits if bias is None else logits + bias


def _replicated(x: Tensor, weight: Any) -> Tensor:
    """A tensor that all ranks have as a DTensor. Its gradient is summed over the ranks."""
    from torch.distributed.tensor import DTensor, Replicate

    return DTensor.from_local(x, weight.device_mesh, [Replicate()], run_check=False)


def _whole(x: Any) -> Tensor:
    from torch.distributed.tensor import Replicate

    return x.redistribute(placements=[Replicate()]).to_local()  # type: ignore[no-any-return]
