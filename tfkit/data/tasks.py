"""The inputs and the labels of a row, for each kind of data.

parallel         source s1 .. sn </s>, target <s> t1 .. tm       labels t1 .. tm </s>   (teacher forcing)
language         target t1 .. tn                                 labels t2 .. tn+1
texts            target t1 .. tn                                 labels t2 .. tn </s>
masked           target <s> .. <mask> .. </s>                    labels of the masked positions
masked_pairs     target <s> a1 .. <mask> .. </s> b1 .. bn </s>   labels of the masked positions, and one label
classification   target <s> t1 .. tn </s>                        one label
pairs            target <s> a1 .. am </s> b1 .. bn </s>          one label
tagged           target <s> t1 .. tn </s>                        labels of the first pieces of words
spans            target <s> q1 .. qm </s> c1 .. cn </s>          the first and the last position of an answer
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..recipe import Recipe
from .corpus import LINKS, NO_LABEL, TAGS, Corpus
from .kinds import KINDS
from .masking import Masking, masking_of
from .roles import Roles
from .subword_sampling import SubwordSampler, draw_of, sampler_of
from .text_frame import PAD, PairFrame
from .tokeniser import PAIR, TextTokeniser


@dataclass(frozen=True)
class Batch:
    """A batch of rows.

    Attributes:
        inputs: (B, L) int64 ids or (B, C, H, W) float32 images, by input node.
        lengths: (B,) int64, by input node of ids.
        labels: (B, L) int64, (B,) for a classification, or (B, 2) for spans; NO_LABEL for positions without one.
        source_tokens: The number of input tokens that are not predicted one by one.
        target_tokens: The number of labels.
        segments: (B, L) int64, by input node that has segments.
        documents: (B, L) int64, by input node of packed rows.
        other_labels: Labels of further outputs, by output.
        links: (N, 3) int64, row, target token and source token of each aligned pair of tokens; None for data without
            an alignment.
    """

    inputs: dict[str, Tensor]
    lengths: dict[str, Tensor]
    labels: Tensor
    source_tokens: int
    target_tokens: int
    segments: dict[str, Tensor] = field(default_factory=dict)
    other_labels: dict[str, Tensor] = field(default_factory=dict)
    documents: dict[str, Tensor] = field(default_factory=dict)
    links: Tensor | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the model."""
        tables = {"segments": self.segments, "documents": self.documents}
        return {"lengths": self.lengths, **{name: table for name, table in tables.items() if table}, **self.inputs}

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with other tensors."""

        def table(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: function(tensor) for name, tensor in tensors.items()}

        return replace(
            self, inputs=table(self.inputs), lengths=table(self.lengths), labels=function(self.labels),
            segments=table(self.segments), other_labels=table(self.other_labels), documents=table(self.documents),
            links=None if self.links is None else function(self.links),
        )  # fmt: skip

    def tensors(self) -> list[Tensor]:
        """All tensors, in the same order for all batches of a task."""
        tables = (self.inputs, self.lengths, self.segments, self.other_labels, self.documents)
        others = [self.labels, *([] if self.links is None else [self.links])]
        return [tensor for table in tables for tensor in table.values()] + others

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        pinned = self.mapped(torch.Tensor.pin_memory) if device.type == "cuda" else self  # else a copy may wait for the device
        return pinned.mapped(lambda tensor: tensor.to(device, non_blocking=True))


@dataclass(frozen=True)
class Task:
    """A kind of data for a model. `vocab_size` is that of the target, `masking` says which tokens are hidden, and
    `pair` which special tokens are around a pair of texts. `samplers`, by column, draw the pieces of training rows, by
    `seed`."""

    kind: str
    roles: Roles
    vocab_size: int
    masking: Masking | None = None
    pair: PairFrame = PAIR
    samplers: Mapping[str, SubwordSampler] = field(default_factory=dict)
    seed: int = 0

    def _rows(self, corpus: Corpus, column: str, numbers: Sequence[int], epoch: int) -> Sequence[Ids]:
        """The ids of some rows; in an epoch of training perhaps of other pieces."""
        return [row for row, _ in self._placed_rows(corpus, column, numbers, epoch)]

    def _placed_rows(self, corpus: Corpus, column: str, numbers: Sequence[int], epoch: int) -> list[tuple[Ids, Places]]:
        """The ids of some rows, and where the pieces of the word of each of their tokens are: None where they stay."""
        rows = corpus.rows(column, numbers)
        sampler = self.samplers.get(column) if epoch else None
        if sampler is None:
            return [(row, None) for row in rows]
        placed: list[tuple[Ids, Places]] = []
        for number, row in zip(numbers, rows, strict=True):
            ids, places = sampler.with_places(row.tolist(), draw_of(self.seed, epoch, number, column))
            placed.append((np.array(ids, np.int32), [sampler.of_word(ids, place) for place in places]))
        return placed

    def batch(self, corpus: Corpus, numbers: Sequence[int], draw: np.random.Generator, epoch: int = 0) -> Batch:
        """The batch of some rows of a corpus. Random masks come from `draw`; `epoch`, from 1, is that of training."""
        if self.kind == "parallel":
            sides = [self._placed_rows(corpus, column, numbers, epoch) for column in ("source", "target")]
            batch = parallel_batch(self.roles, *([row for row, _ in side] for side in sides))
            if not corpus.has(LINKS):
                return batch
            links = corpus.rows(LINKS, numbers)
            if self.samplers and epoch:
                links = [_moved(row, *(side[at][1] for side in sides)) for at, row in enumerate(links)]
            return replace(batch, links=_links(links))
        target = self._rows(corpus, "target", numbers, epoch)
        if self.kind in ("language", "texts"):
            return language_batch(self.roles, target)
        whole, counts = padded(target)
        name = self.roles.target
        segments = (
            {name: segments_of(whole, counts, self.pair)}
            if self.kind in ("pairs", "masked_pairs", "spans") and self.roles.segments
            else {}
        )
        if self.kind in ("classification", "pairs"):
            labels = _numbers(corpus, "label", numbers)
            return Batch({name: whole}, {name: counts}, labels, int(counts.sum()), len(labels), segments)
        if self.kind == "spans":
            labels = torch.stack([_numbers(corpus, column, numbers) for column in ("start", "end")], 1)
            return Batch({name: whole}, {name: counts}, labels, int(counts.sum()), labels.numel(), segments)
        if self.kind == "tagged":
            labels, _ = padded(corpus.rows(TAGS, numbers), NO_LABEL)
            return Batch({name: whole}, {name: counts}, labels, int(counts.sum()), int((labels != NO_LABEL).sum()))
        assert self.masking is not None, "masked data have a masking"
        read, hidden = self.masking(whole.numpy(), counts.numpy(), self.vocab_size, draw)
        labels = torch.from_numpy(np.where(hidden, whole.numpy(), NO_LABEL))
        others = {output: _numbers(corpus, column, numbers) for column, output in self.roles.others.items()}
        target_tokens = int((labels != NO_LABEL).sum())
        masked = {name: torch.from_numpy(read)}
        return Batch(masked, {name: counts}, labels, int(counts.sum()), target_tokens, segments, others)


def _moved(links: Ids, source: Places, target: Places) -> Ids:
    """Links of tokens of a row as links of other pieces of the same words. A link of words holds for all their pieces."""
    pairs = {
        (one, two)
        for at, to in links.reshape(-1, 2).tolist()
        for one in ([at] if source is None else source[at])
        for two in ([to] if target is None else target[to])
    }
    return np.array(sorted(pairs, key=lambda pair: pair[::-1]), np.int32).reshape(-1)


def _links(rows: Sequence[Ids]) -> Tensor:
    """The row, the target token and the source token of each link (N, 3) of rows of pairs."""
    pairs = np.concatenate([np.zeros((0, 2), np.int64), *(row.reshape(-1, 2) for row in rows)])
    numbers = np.repeat(np.arange(len(rows)), [len(row) // 2 for row in rows])
    return torch.from_numpy(np.stack([numbers, pairs[:, 1], pairs[:, 0]], 1).astype(np.int64))


def parallel_batch(roles: Roles, source: Sequence[Ids | Sequence[int]], target: Sequence[Ids | Sequence[int]]) -> Batch:
    """The batch of sources and targets with their special tokens: the target starts with `start_id`, its labels do not."""
    source_ids, source_counts = padded(source)
    whole, counts = padded(target)
    is_padding = torch.arange(whole.shape[1], device="cpu") >= counts[:, None]
    shifted = torch.full_like(whole, roles.start_id)
    shifted[:, 1:] = whole[:, :-1]
    assert roles.source is not None, "parallel data have a source"
    inputs = {roles.source: source_ids, roles.target: shifted.masked_fill(is_padding, PAD)}
    lengths = {roles.source: source_counts, roles.target: counts}
    labels = whole.masked_fill(is_padding, NO_LABEL)
    return Batch(inputs, lengths, labels, int(source_counts.sum()), int(counts.sum()))


def language_batch(roles: Roles, rows: Sequence[Ids | Sequence[int]]) -> Batch:
    """The batch of rows of at least two tokens: each token but the first is the label of the one before it."""
    whole, counts = padded(rows)
    counts = counts - 1
    is_padding = torch.arange(whole.shape[1] - 1, device="cpu") >= counts[:, None]
    inputs, labels = whole[:, :-1].masked_fill(is_padding, PAD), whole[:, 1:].masked_fill(is_padding, NO_LABEL)
    return Batch({roles.target: inputs}, {roles.target: counts}, labels, 0, int(counts.sum()))


def task_of(recipe: Recipe, roles: Roles, tokenisers: Mapping[str, TextTokeniser]) -> Task:
    """The task of a recipe with tokenisers by column. Raises InputError if they cannot draw pieces as it says."""
    options, tokeniser = recipe.data.options, tokenisers["target"]
    samplers = {column: sampler for column in tokenisers if (sampler := sampler_of(recipe, tokenisers[column])) is not None}
    masking = masking_of(options.masking or "tokens", options.hidden, tokeniser) if KINDS[recipe.data.kind].masks else None
    return Task(recipe.data.kind, roles, tokeniser.size, masking, tokeniser.pair_frame, samplers, recipe.seed)


def _numbers(corpus: Corpus, column: str, rows: Sequence[int]) -> Tensor:
    """A column of numbers of some rows, (B,) int64."""
    return torch.from_numpy(corpus.numbers[column][list(rows)].astype(np.int64))


def segments_of(ids: Tensor, lengths: Tensor, frame: PairFrame) -> Tensor:
    """The segments (B, L) of rows `<s> first </s> second </s>` with lengths (B,): 1 after the first `</s>`, 0 elsewhere. No
    first text has the id of `</s>`."""
    if not any(frame.segments):
        return torch.zeros_like(ids)
    ends = ids == frame.between[-1]
    real = torch.arange(ids.shape[1], device="cpu") < lengths[:, None]
    return ((ends.cumsum(1) - ends.long() > 0) & real).long()


Ids = npt.NDArray[np.int32]
Places = list[list[int]] | None


def padded(rows: Sequence[Ids | Sequence[int]], padding: int = PAD) -> tuple[Tensor, Tensor]:
    """Rows of ids as (B, L) int64, padded on the right, and their lengths (B,)."""
    counts = np.array([len(row) for row in rows], np.int64)
    ids = np.full((len(rows), int(counts.max())), padding, np.int64)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
    return torch.from_numpy(ids), torch.from_numpy(counts)
