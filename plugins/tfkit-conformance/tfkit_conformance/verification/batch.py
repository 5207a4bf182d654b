"""The input batch of a model: random ids, frames and images; rows without padding, with right padding and with left padding.

Every input has a length of its own, and its padding begins one row later than that of the input before it, so that no axis and
no mask can be mistaken for another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tfkit import Diagnostic, Graph, InputError, Model
from tfkit.inspection import layers_of, max_input_lengths, sequence
from tfkit.plugin.model_parts import AnyInputRule, FeatureRule, ImageRule, InputRule

from ..source import read_source

USUAL = (27, 22, 25)
LONG = (73, 70, 75)
"""Positions of the long batch: more than the 64 that a cache has room for at first. It is longer where a number of the model
says so (`long_lengths`)."""
MAX_LONG, MAX_WORK = 1100, 10**10
"""Positions of the long batch at most, and their product with the parameters of the model."""
SHORT = (8, 7, 9)
"""Positions of the batch of many rows."""
MANY_ROWS = 24
MAX_POSITIONS = 2**24
"""Positions of all rows at most: drawn before a model runs, more of them could fill the memory of a machine."""


@dataclass(frozen=True)
class Batch:
    """Sequences by input: token ids (B, L) or frames (B, L, F); which of their positions are real (B, L) bool; segments where
    an input has them; images (B, C, H, W), which have no padding; and the documents (B, L) of rows that hold several."""

    ids: dict[str, Tensor]
    visible: dict[str, Tensor]
    segments: dict[str, Tensor]
    images: dict[str, Tensor] = field(default_factory=dict)
    documents: dict[str, Tensor] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(next(iter((*self.ids.values(), *self.images.values()))))

    def call(self, without: str | None = None, dtype: torch.dtype = torch.float32, by_lengths: bool = False) -> dict[str, Any]:
        """The keywords of the call of a model of this dtype; `without` leaves one input out. Padding is given by masks, or by
        lengths where all of it is on the right."""

        def kept(table: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor for name, tensor in table.items() if name != without}

        inputs = kept({**self.ids, **self.images})
        typed = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
        masks = kept(self.visible)
        padding = {"lengths": {name: mask.sum(1) for name, mask in masks.items()}} if by_lengths else {"masks": masks}
        packed = {"documents": kept(self.documents)} if self.documents else {}
        return {**padding, **packed, "segments": kept(self.segments), **typed}

    def with_ids(self, name: str, tensor: Tensor) -> Batch:
        """The batch with another sequence, or other images, of one input."""
        table = "images" if name in self.images else "ids"
        return replace(self, **{table: {**getattr(self, table), name: tensor}})

    def rows(self, index: Tensor) -> Batch:
        """The batch rows `index`, in that order."""
        ids, visible, segments, images = (
            {name: tensor[index] for name, tensor in table.items()} for table in (*self.tables(), self.images)
        )
        return Batch(ids, visible, segments, images)

    def packed(self) -> Batch:
        """All rows one after the other in one row, each a document."""
        ids, visible, segments = ({name: t.flatten(0, 1)[None] for name, t in table.items()} for table in self.tables())
        rows = torch.arange(self.size)
        documents = {name: rows.repeat_interleave(t.shape[1])[None].to(t.device) for name, t in self.ids.items()}
        return Batch(ids, visible, segments, documents=documents)

    def positions(self, name: str, index: Tensor) -> Batch:
        """One input with its positions in the order of `index`."""
        ids, visible, segments = ({n: t[:, index] if n == name else t for n, t in table.items()} for table in self.tables())
        return Batch(ids, visible, segments, self.images)

    def padded(self, name: str, count: int, left: bool, pad: int) -> Batch:
        """One input with `count` more positions of padding on a side."""
        tables = []
        for table, fill in zip(self.tables(), (pad, False, 0), strict=True):
            table = dict(table)
            if name in table:
                more = table[name].new_full((table[name].shape[0], count, *table[name].shape[2:]), fill)
                table[name] = torch.cat([more, table[name]] if left else [table[name], more], 1)
            tables.append(table)
        ids, visible, segments = tables
        return Batch(ids, visible, segments, self.images)

    def padded_right(self) -> Batch:
        """The same batch with all padding moved to the right, as lengths require."""
        ids, visible, segments = {}, {}, {}
        for name, mask in self.visible.items():
            order = (~mask).to(torch.int8).argsort(dim=1, stable=True)
            sequence = self.ids[name]
            places = order if sequence.dim() == 2 else order[..., None].expand_as(sequence)
            ids[name], visible[name] = sequence.gather(1, places), mask.gather(1, order)
            if name in self.segments:
                segments[name] = self.segments[name].gather(1, order)
        return Batch(ids, visible, segments, self.images)

    def tables(self) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        return self.ids, self.visible, self.segments


def draw(model: Model, lengths: Mapping[str, int], rows: int, seed: int, device: str, padding: bool = True) -> Batch:
    """A batch of `rows` rows for a model; every third row of an input is whole, padded on the right, on the left."""
    generator = torch.Generator().manual_seed(seed)
    ids: dict[str, Tensor] = {}
    visible: dict[str, Tensor] = {}
    segments: dict[str, Tensor] = {}
    images: dict[str, Tensor] = {}
    for number, (name, rule) in enumerate(model.plan.inputs.items()):
        if isinstance(rule, ImageRule):
            images[name] = _numbers((rows, rule.channels, rule.size, rule.size), generator).to(device)
            continue
        length = lengths[name]
        if rows * length > MAX_POSITIONS:
            raise MemoryError(f"{rows:,} rows of {length:,} positions are more than {MAX_POSITIONS:,} positions")
        mask = torch.ones(rows, length, dtype=torch.bool)
        for row in range(rows):
            hidden = min(1 + (length + row) // 5, length - 1) if padding else 0
            side = (row + number) % 3
            if side == 1 and hidden:
                mask[row, length - hidden :] = False
            elif side == 2 and hidden:
                mask[row, :hidden] = False
        visible[name] = mask.to(device)
        if isinstance(rule, FeatureRule):
            ids[name] = _numbers((rows, length, rule.size), generator).masked_fill(~mask[..., None], 0.0).to(device)
            continue
        drawn = random_ids(rule, (rows, length), generator)
        if rule.end_id is not None:
            last = length - 1 - mask.flip(1).to(torch.int64).argmax(1)
            drawn[torch.arange(rows), last] = rule.end_id
        pad = rule.pad_id if rule.pad_id is not None else 0
        ids[name] = drawn.where(mask, pad).to(device)
        if rule.segments:
            segments[name] = torch.randint(rule.segments, (rows, length), generator=generator).to(device)
    return Batch(ids, visible, segments, images)


def _numbers(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Random numbers that every dtype holds exactly: multiples of 1/32 between -4 and 4."""
    return torch.randn(shape, generator=generator).mul(32).round().clamp(-127, 127) / 32


def random_ids(rule: InputRule, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Ids that are neither padding, start nor end (any id where the vocabulary has no other)."""
    special = {rule.pad_id, rule.start_id, rule.end_id}
    real = torch.tensor([number for number in range(min(rule.vocab_size, 5000)) if number not in special] or [0])
    return real[torch.randint(len(real), shape, generator=generator)]


def other_values(rule: AnyInputRule, original: Tensor, generator: torch.Generator) -> Tensor:
    """Ids, frames or images that differ from the given ones in every position."""
    if isinstance(rule, InputRule):
        return other_ids(rule, original, generator)
    drawn = _numbers(tuple(original.shape), generator).to(original)
    return torch.where(drawn == original, -original - 1.0, drawn)


def where_shown(visible: Tensor, tensor: Tensor, other: Tensor) -> Tensor:
    """`tensor` (B, L) or (B, L, F) where `visible` (B, L), else `other`."""
    return torch.where(visible if tensor.dim() == 2 else visible[..., None], tensor, other)


def other_ids(rule: InputRule, ids: Tensor, generator: torch.Generator) -> Tensor:
    """Ids that differ from the given ones everywhere, where the vocabulary has two real ids or more."""
    shape = (ids.shape[0], ids.shape[1])
    drawn = random_ids(rule, shape, generator).to(ids.device)
    for _ in range(20):
        drawn = torch.where(drawn == ids, random_ids(rule, shape, generator).to(ids.device), drawn)
    return drawn


def long_lengths(graph: Graph, model: Model) -> tuple[int, ...]:
    """Positions of the long batch: beyond every number at which the model may change its path, as far as time allows."""
    most = min(MAX_LONG, MAX_WORK // max(1, model.parameter_count()))
    longest = max((number for number in turning_points(graph, model) if number + 3 <= most), default=0)
    return tuple(length + max(0, longest + 3 - min(LONG)) for length in LONG)


def turning_points(graph: Graph, model: Model) -> set[int]:
    """The windows of attention, the whole numbers among the options of position schemes and of parts of plugins, and those in
    the sources of these parts."""
    numbers: set[int] = set()
    for node in graph.nodes.values():
        parts = [getattr(node.options, "position", None)]
        for _, layer in sequence(layers_of(node.options)):
            parts.append(layer.position)
            for sublayer in layer.sublayers or ():
                numbers |= _whole_numbers(getattr(sublayer.options, "window", None))
                parts += [getattr(sublayer.options, "position", None), sublayer if "." in sublayer.kind else None]
        for part in parts:
            if part is not None:
                numbers |= _whole_numbers(part.options.model_dump())
    foreign = {type(module) for module in model.modules() if module.__module__.split(".")[0] not in ("tfkit", "torch")}
    return numbers | set(read_source(*foreign).integers)


def _whole_numbers(value: Any) -> set[int]:
    """The whole numbers above 1 in options, but not the numbers of features (`dims`, `d_position`)."""
    if isinstance(value, dict):
        return set().union(*(_whole_numbers(item) for key, item in value.items() if key != "dims" and not key.startswith("d_")))
    if isinstance(value, (list, tuple)):
        return set().union(*map(_whole_numbers, value))
    return {value} if isinstance(value, int) and not isinstance(value, bool) and value > 1 else set()


def lengths_for(graph: Graph, wanted: Mapping[str, int] | None, usual: tuple[int, ...] = USUAL) -> dict[str, int]:
    """A length for every input, the usual one unless another is wanted. Raises InputError for an unknown input, or a length
    beyond its position table."""
    most = max_input_lengths(graph)
    chosen = dict(wanted or {})
    for name, length in chosen.items():
        if name not in most:
            raise InputError(Diagnostic("TFK073", f"the model has no input `{name}`", f"inputs: {', '.join(most)}"))
        limit = most[name]
        if length < 1 or (limit is not None and length > limit):
            raise InputError(Diagnostic("TFK073", f"`{name}` cannot have length {length}", f"1 to {limit or 'any length'}"))
    for number, (name, limit) in enumerate(most.items()):
        length = usual[number % len(usual)]
        chosen.setdefault(name, min(length, limit or length))
    return {name: chosen[name] for name in most}
