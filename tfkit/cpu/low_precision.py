"""Linear maps and heads that multiply in a lower precision than float32, for decoding on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor, nn

CANDIDATES = 8
"""Logits of a row that are computed again. A beam search with k beams reads the 2 k largest of its k rows together."""
GROUP = 64
"""Numbers in a group. The largest logits are in the groups with the largest maxima: searching these is faster than `topk`."""


Refine = Callable[[Tensor, Tensor, Tensor, Tensor | None, int], None]
Listed = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
_recording: ContextVar[Refine | None] = ContextVar("recording", default=None)
recording_lists: ContextVar[Listed | None] = ContextVar("recording_lists", default=None)
"""What records the logits of shortlists in this thread."""


@contextmanager
def recording_heads(refine: Refine, listed: Listed | None = None) -> Iterator[None]:
    """The heads of this thread record what is no operator of torch (`tfkit.plugin.StepRecorder`).

    Args:
        refine: called as `refine(logits, x, weight, bias, count)` with logits (N, vocab_size), inputs (N, M), a weight
            (vocab_size, M) and a bias (vocab_size,) or None. It overwrites the `count` largest logits of each row by x W^T + b.
        listed: called as `listed(x, lists, weight, bias)` with lists (S, C) of ids, each of which N / S successive rows of x
            share. Returns logits (N, C): those of x W^T + b with these ids, -inf where an id is below 0. None if searches with
            shortlists are not recorded.
    """
    tokens = _recording.set(refine), recording_lists.set(listed)
    try:
        yield
    finally:
        _recording.reset(tokens[0])
        recording_lists.reset(tokens[1])


class LowPrecisionWeight(Protocol):
    """A weight (out, in), rounded. `how` names its numbers or its kernel."""

    how: str

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x W^T + b.

        Args:
            x: (N, in) float32.
            bias: (out,), or None.

        Returns:
            (N, out) float32. A row has the same bits alone and in a batch.
        """


class LowPrecisionLinear(nn.Module):
    """`nn.Linear` with a rounded weight, (..., in) -> (..., out). It has no gradient.

    Args:
        linear: the map.
        rounded: its weight, rounded.
    """

    def __init__(self, linear: nn.Linear, rounded: LowPrecisionWeight) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.rounded = rounded
        self.bias = linear.bias

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b, with the rounded weight.

        Args:
            x: (..., in) float32.

        Returns:
            (..., out)
        """
        y = self.rounded.product(x.reshape(-1, self.in_features), self.bias)
        return y.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """The sizes, as `nn.Linear` prints them, and how products are computed."""
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}, {self.rounded.how}"


class LowPrecisionHead:
    """Logits over a vocabulary. The largest of each row, among which a search chooses, are computed again in float32.

    Args:
        rounded: the weight (vocab_size, M), rounded.
    """

    def __init__(self, rounded: LowPrecisionWeight) -> None:
        self.rounded = rounded

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
        logits, refine = self.rounded.product(rows, bias), _recording.get()
        if refine is not None:
            refine(logits, rows, weight, bias, CANDIDATES)
        elif logits.numel():
            chosen = largest(logits, CANDIDATES)  # (N, CANDIDATES)
            near = weight.index_select(0, chosen.flatten()).view(*chosen.shape, -1)  # (N, CANDIDATES, M)
            exact = near.mul_(rows[:, None]).sum(2)
            logits.scatter_(1, chosen, exact if bias is None else exact.add_(bias[chosen]))
        return logits.view(*x.shape[:-1], logits.shape[1])


def largest(scores: Tensor, count: int) -> Tensor:
    """The indices (N, count) of the largest of scores (N, V), in any order; all if V is smaller."""
    V = scores.shape[1]
    groups = V // GROUP
    if groups <= 2 * count:
        return scores.topk(min(count, V), 1, sorted=False).indices
    maxima = scores[:, : groups * GROUP].unflatten(1, (groups, GROUP)).amax(2)  # type: ignore[no-untyped-call]
    members = GROUP * maxima.topk(count, 1, sorted=False).indices[:, :, None] + torch.arange(GROUP, device=scores.device)
    index = torch.cat([members.flatten(1), torch.arange(groups * GROUP, V, device=scores.device).expand(len(scores), -1)], 1)
    return index.gather(1, scores.gather(1, index).topk(count, 1, sorted=False).indices)
