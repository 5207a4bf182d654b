"""The n best of many scores, ties broken by the lower index.

`torch.topk` leaves open which of equal scores it takes and in what order. Equal scores are rare in float32 and common in
bfloat16, so they are looked for, and where one straddles the n-th place the lowest indices are counted out.

Over a vocabulary it is slow: ten times the reading of it. The n best words are in the n groups of words with the largest
maxima, so that only these have to be looked through.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

GROUP, FEWEST = 128, 2048
"""Words in a group, a multiple of a CPU's vector; and the smallest vocabulary in which groups are worth the trouble."""


def best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of scores (S, C) with their indices, each (S, count), largest first, the lower index first among
    equals, numbers that are none before all others. Fewer than `count` scores are filled up with -inf at index 0."""
    lacking = count - scores.shape[1]
    if lacking >= 0:
        values, indices = scores.sort(dim=1, descending=True, stable=True)
        return functional.pad(values, (0, lacking), value=-torch.inf), functional.pad(indices, (0, lacking))
    values, indices = scores.topk(count + 1, 1)
    if _tied(values):
        indices = _lowest(scores, count)
        return _ordered(scores.gather(1, indices), indices)
    return _ordered(values[:, :count], indices[:, :count])


def best_tokens(log_probs: Tensor, totals: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best of totals[s, j] + chances[s, j, word], chances (S, k, V), with their indices j * V + word, each
    (S, count), ordered as by `best`."""
    S, k, V = log_probs.shape
    groups = V // GROUP
    if V >= FEWEST and k * groups > count:
        whole = log_probs[:, :, : groups * GROUP].unflatten(2, (groups, GROUP))  # type: ignore[no-untyped-call]
        tops = (whole.amax(3) + totals[:, :, None]).flatten(1)  # rounding keeps order: the largest sum is that of the largest
        taken = tops.topk(count + 1, 1).indices  # (S, count + 1), numbers j * groups + group
        beams = taken // groups
        first = taken * GROUP + beams * (V - groups * GROUP)
        index = first[:, :, None] + torch.arange(GROUP, device=log_probs.device)
        flat = log_probs.view(S, k * V)
        looked = (flat.gather(1, index.flatten(1)).view(index.shape) + totals.gather(1, beams)[:, :, None]).flatten(1)
        index = index.flatten(1)
        if groups * GROUP < V:  # the words after the last whole group
            looked = torch.cat([looked, (log_probs[:, :, groups * GROUP :] + totals[:, :, None]).flatten(1)], 1)
            rest = torch.arange(k * V, device=log_probs.device).view(k, V)[:, groups * GROUP :]
            index = torch.cat([index, rest.flatten().expand(S, -1)], 1)
        values, at = looked.topk(count + 1, 1)
        if not _tied(values):
            return _ordered(values[:, :count], index.gather(1, at[:, :count]))
    return best((log_probs + totals[:, :, None]).view(S, k * V), count)


def most_probable(logits: Tensor) -> Tensor:
    """The index (R,) of the largest of logits (R, V), the lowest among equals: what `argmax` finds, five times slower."""
    V = logits.shape[1]
    groups = V // GROUP
    if V < FEWEST:
        return logits.argmax(1)
    tops = logits[:, : groups * GROUP].unflatten(1, (groups, GROUP)).amax(2)  # type: ignore[no-untyped-call]
    if groups * GROUP < V:  # the words after the last whole group
        tops = torch.cat([tops, logits[:, groups * GROUP :].amax(1, keepdim=True)], 1)
    first = tops.argmax(1, keepdim=True) * GROUP
    index = (first + torch.arange(GROUP, device=logits.device)).clamp(max=V - 1)
    found: Tensor = first + logits.gather(1, index).argmax(1, keepdim=True)
    return found[:, 0]


def _tied(values: Tensor) -> bool:
    """Whether the last two of values (S, count + 1) are equal anywhere, so that which was taken is chance."""
    last, beyond = values[:, -2], values[:, -1]
    return bool(((last == beyond) & (beyond > -torch.inf)).any())


def _lowest(scores: Tensor, count: int) -> Tensor:
    """The indices (S, count) of the largest scores, rising; of those equal to the smallest of them the lowest."""
    scores = scores.nan_to_num(torch.inf, torch.inf, -torch.inf)
    least = scores.topk(count, 1).values[:, -1:]
    above, equal = scores > least, scores == least
    taken = above | (equal & (equal.cumsum(1) <= count - above.sum(1, keepdim=True)))
    return taken.nonzero()[:, 1].view(-1, count)


def _ordered(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Values that are the best, the lower index first among equals."""
    indices, order = indices.sort(1)
    values, again = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, indices.gather(1, again)
