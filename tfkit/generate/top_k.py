"""The n largest of many scores; of equal scores the lower index.

`torch.topk` does not define which of equal scores it returns, nor their order. Equal scores are rare in float32 and common in
bfloat16. If the n-th and the next score are equal, the lowest indices are selected explicitly.

`topk` over a vocabulary takes ten times as long as reading the scores. The n largest scores are in the n groups of tokens with
the largest maxima, so only these groups are searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..cpu.int8 import capabilities
from ..cpu.products import are_plain
from ..slots.lazy import load
from ..slots.processor_kernels import BeamTopK

Select = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]
"""The function of a `BeamTopK`."""
GROUP, MIN_GROUPED = 128, 2048
"""Tokens in a group, a multiple of the elements of a CPU vector; and the smallest vocabulary for which groups are faster."""


def best_continuations(logits: Tensor, totals: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations of the beams of each sentence; see `tfkit.plugin.BeamTopK`. The logits are overwritten."""
    S, k = totals.shape
    # In place: allocating a tensor of this size takes longer than the arithmetic.
    log_probs = torch.log_softmax(logits, 1, out=logits).view(S, k, -1)
    return best_of(log_probs, totals, count)


def best_of(log_probs: Tensor, totals: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """As `best_continuations`, of log-probabilities (S, k, V)."""
    values, indices = best_tokens(log_probs, totals, count)
    return values, indices, log_probs.flatten(1).gather(1, indices)


def fastest(kernels: Sequence[BeamTopK]) -> Select:
    """The fastest kernel for float32 on a CPU that this processor has instructions for.

    Args:
        kernels: the installed ones.

    Returns:
        Its function, or `best_continuations`.
    """
    for kernel in _usable(kernels):
        select: Select = load(kernel.select)
        return select
    return best_continuations


def fastest_greedy(kernels: Sequence[BeamTopK]) -> Callable[[Tensor], Tensor]:
    """The function of greedy decoding.

    Args:
        kernels: the installed ones.

    Returns:
        `most_probable`, by the fastest kernel that has a `greedy` where it can take the logits.
    """
    for kernel in _usable(kernels):
        if kernel.greedy is not None:
            greedy: Callable[[Tensor], Tensor] = load(kernel.greedy)
            return lambda x: greedy(x) if x.dtype == torch.float32 and are_plain(x) else most_probable(x)
    return most_probable


def _usable(kernels: Sequence[BeamTopK]) -> Iterator[BeamTopK]:
    """Those that this processor has instructions for, the fastest first."""
    instructions = capabilities()
    for kernel in sorted(kernels, key=lambda kernel: kernel.relative_time):
        if all(instructions.get(name) for name in kernel.needs):
            yield kernel


def best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of scores (S, C) and their indices, each (S, count), in descending order, of equal scores the lower
    index first, NaN before all numbers. If C < `count`, the rest is -inf with index 0."""
    lacking = count - scores.shape[1]
    if lacking >= 0:
        values, indices = scores.sort(dim=1, descending=True, stable=True)
        return functional.pad(values, (0, lacking), value=-torch.inf), functional.pad(indices, (0, lacking))
    values, indices = scores.topk(count + 1, 1)
    if bool(_tied(values).any()):
        indices = _lowest(scores, count)
        return _ordered(scores.gather(1, indices), indices)
    return _ordered(values[:, :count], indices[:, :count])


def best_tokens(log_probs: Tensor, totals: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of totals[s, j] + log_probs[s, j, v] and their indices j * V + v, each (S, count), in the order of
    `best`. `totals` is (S, k), `log_probs` (S, k, V)."""
    S, k, V = log_probs.shape
    groups = V // GROUP
    if V >= MIN_GROUPED and k * groups > count:
        whole = log_probs[:, :, : groups * GROUP].unflatten(2, (groups, GROUP))  # type: ignore[no-untyped-call]
        tops = (whole.amax(3) + totals[:, :, None]).flatten(1)  # (S, k * groups); rounding is monotone, so maxima stay maxima
        chosen = tops.topk(count + 1, 1).indices  # (S, count + 1), numbers j * groups + group
        beams = chosen // groups
        first = chosen * GROUP + beams * (V - groups * GROUP)
        index = first[:, :, None] + torch.arange(GROUP, device=log_probs.device)
        flat = log_probs.view(S, k * V)
        candidates = (flat.gather(1, index.flatten(1)).view(index.shape) + totals.gather(1, beams)[:, :, None]).flatten(1)
        index = index.flatten(1)
        if groups * GROUP < V:  # the tokens after the last whole group
            candidates = torch.cat([candidates, (log_probs[:, :, groups * GROUP :] + totals[:, :, None]).flatten(1)], 1)
            rest = torch.arange(k * V, device=log_probs.device).view(k, V)[:, groups * GROUP :]
            index = torch.cat([index, rest.flatten().expand(S, -1)], 1)
        values, at = candidates.topk(count + 1, 1)
        ordered = _ordered(values[:, :count], index.gather(1, at[:, :count]))
        for row in _tied(values).nonzero()[:, 0].tolist():  # equal scores may be in a group that was not chosen
            exact = best((log_probs[row] + totals[row, :, None]).view(1, k * V), count)
            for whole, one in zip(ordered, exact, strict=True):
                whole[row] = one[0]
        return ordered
    return best((log_probs + totals[:, :, None]).view(S, k * V), count)


def most_probable(logits: Tensor) -> Tensor:
    """The index (R,) of the largest of logits (R, V), of equal ones the lowest. It is five times as fast as `argmax`."""
    V = logits.shape[1]
    groups = V // GROUP
    if V < MIN_GROUPED:
        return logits.argmax(1)
    tops = logits[:, : groups * GROUP].unflatten(1, (groups, GROUP)).amax(2)  # type: ignore[no-untyped-call]
    if groups * GROUP < V:  # the tokens after the last whole group
        tops = torch.cat([tops, logits[:, groups * GROUP :].amax(1, keepdim=True)], 1)
    first = tops.argmax(1, keepdim=True) * GROUP
    index = (first + torch.arange(GROUP, device=logits.device)).clamp(max=V - 1)
    tokens: Tensor = first + logits.gather(1, index).argmax(1, keepdim=True)
    return tokens[:, 0]


def _tied(values: Tensor) -> Tensor:
    """The rows (S,) of values (S, count + 1) whose last two are equal, so that `topk` chose between them arbitrarily."""
    last, beyond = values[:, -2], values[:, -1]
    return (last == beyond) & (beyond > -torch.inf)


def _lowest(scores: Tensor, count: int) -> Tensor:
    """The indices (S, count) of the largest scores, ascending; of scores equal to the smallest of these the lowest indices."""
    scores = scores.nan_to_num(torch.inf, torch.inf, -torch.inf)
    smallest = scores.topk(count, 1).values[:, -1:]
    above, equal = scores > smallest, scores == smallest
    chosen = above | (equal & (equal.cumsum(1) <= count - above.sum(1, keepdim=True)))
    return chosen.nonzero()[:, 1].view(-1, count)


def _ordered(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Values and indices in descending order, of equal values the lower index first."""
    indices, order = indices.sort(1)
    values, again = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, indices.gather(1, again)
