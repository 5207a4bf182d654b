"""What a row of each kind of data becomes: the inputs of the model and what it is to predict (teacher forcing).

parallel   source s1 .. sn </s>      target <s> t1 .. tm      labels t1 .. tm </s>
language   target t1 .. tm           labels t2 .. tm+1
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..recipe import PAD, START
from .corpus import Corpus
from .roles import Roles


@dataclass(frozen=True)
class Batch:
    """`inputs` (B, L) ids and `lengths` (B,) by input node, `labels` (B, L) ids of the target, PAD where there is none.
    Tokens are counted without padding, those of the target as often as there are labels."""

    inputs: dict[str, Tensor]
    lengths: dict[str, Tensor]
    labels: Tensor
    source_tokens: int
    target_tokens: int

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        inputs = {name: ids.to(device, non_blocking=True) for name, ids in self.inputs.items()}
        lengths = {name: counts.to(device, non_blocking=True) for name, counts in self.lengths.items()}
        labels = self.labels.to(device, non_blocking=True)
        return Batch(inputs, lengths, labels, self.source_tokens, self.target_tokens)


def batch_of(corpus: Corpus, numbers: Iterable[int], roles: Roles) -> Batch:
    """Some rows of a corpus as one batch."""
    numbers = list(numbers)
    target = corpus.rows("target", numbers)
    inputs: dict[str, Tensor] = {}
    lengths: dict[str, Tensor] = {}
    source_tokens = 0
    if roles.source is not None:
        source = corpus.rows("source", numbers)
        inputs[roles.source], lengths[roles.source] = padded(source)
        source_tokens = sum(map(len, source))
        labels, counts = padded(target)
        shifted = torch.full_like(labels, PAD)
        shifted[:, 0] = START
        shifted[:, 1:] = labels[:, :-1]
        # Behind a row's last label its end token would be read, which is no input.
        shifted.masked_fill_(torch.arange(labels.shape[1]) >= counts[:, None], PAD)
        inputs[roles.target], lengths[roles.target] = shifted, counts
    else:
        whole, counts = padded(target)
        labels = whole[:, 1:].contiguous()
        given = whole[:, :-1].masked_fill(torch.arange(labels.shape[1]) >= (counts - 1)[:, None], PAD)
        inputs[roles.target], lengths[roles.target] = given, counts - 1
    return Batch(inputs, lengths, labels, source_tokens, int(lengths[roles.target].sum()))


def padded(rows: Sequence[npt.NDArray[np.int32] | Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Rows of ids as (B, L) int64, padded on the right, and their lengths (B,)."""
    counts = np.array([len(row) for row in rows], np.int64)
    ids = np.full((len(rows), int(counts.max())), PAD, np.int64)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
    return torch.from_numpy(ids), torch.from_numpy(counts)
