"""The input batch of a model: random ids, rows without padding, with right padding and with left padding.

Every input has a length of its own, and its padding begins one row later than that of the input before it, so that no axis and
no mask can be mistaken for another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tfkit import Diagnostic, Graph, InputError, Model
from tfkit.inspection import max_input_lengths
from tfkit.plugin.model_parts import InputRule

USUAL = (27, 22, 25)


@dataclass(frozen=True)
class Batch:
    """Ids (B, L) by input, which of them are real (B, L) bool, and segments where an input has them."""

    ids: dict[str, Tensor]
    visible: dict[str, Tensor]
    segments: dict[str, Tensor]

    def call(self, without: str | None = None) -> dict[str, Any]:
        """The keywords of a model's call, with padding given by masks; `without` leaves one input out."""

        def kept(table: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor for name, tensor in table.items() if name != without}

        return {"masks": kept(self.visible), "segments": kept(self.segments), **kept(self.ids)}

    def with_ids(self, name: str, ids: Tensor) -> Batch:
        return replace(self, ids={**self.ids, name: ids})

    def rows(self, index: Tensor) -> Batch:
        """The batch rows `index`, in that order."""
        return Batch(*({name: tensor[index] for name, tensor in table.items()} for table in self.tables()))

    def positions(self, name: str, index: Tensor) -> Batch:
        """One input with its positions in the order of `index`."""
        return Batch(*({n: t[:, index] if n == name else t for n, t in table.items()} for table in self.tables()))

    def padded(self, name: str, count: int, left: bool, pad: int) -> Batch:
        """One input with `count` more positions of padding on a side."""
        made = []
        for table, fill in zip(self.tables(), (pad, False, 0), strict=True):
            table = dict(table)
            if name in table:
                more = table[name].new_full((table[name].shape[0], count), fill)
                table[name] = torch.cat([more, table[name]] if left else [table[name], more], 1)
            made.append(table)
        return Batch(*made)

    def tables(self) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        return self.ids, self.visible, self.segments


def draw(model: Model, lengths: Mapping[str, int], rows: int, seed: int, device: str, padding: bool = True) -> Batch:
    """A batch of `rows` rows for a model; every third row of an input is whole, padded on the right, on the left."""
    generator = torch.Generator().manual_seed(seed)
    ids, visible, segments = {}, {}, {}
    for number, (name, rule) in enumerate(model.plan.inputs.items()):
        length = lengths[name]
        shown = torch.ones(rows, length, dtype=torch.bool)
        for row in range(rows):
            hidden = min(1 + (length + row) // 5, length - 1) if padding else 0
            side = (row + number) % 3
            if side == 1 and hidden:
                shown[row, length - hidden :] = False
            elif side == 2 and hidden:
                shown[row, :hidden] = False
        drawn = random_ids(rule, (rows, length), generator)
        if rule.end_id is not None:
            last = length - 1 - shown.flip(1).to(torch.int64).argmax(1)
            drawn[torch.arange(rows), last] = rule.end_id
        pad = rule.pad_id if rule.pad_id is not None else 0
        ids[name], visible[name] = drawn.where(shown, pad).to(device), shown.to(device)
        if rule.segments:
            segments[name] = torch.randint(rule.segments, (rows, length), generator=generator).to(device)
    return Batch(ids, visible, segments)


def random_ids(rule: InputRule, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Ids that are neither padding, start nor end (any id where the vocabulary has no other)."""
    special = {rule.pad_id, rule.start_id, rule.end_id}
    real = torch.tensor([number for number in range(min(rule.vocab_size, 5000)) if number not in special] or [0])
    return real[torch.randint(len(real), shape, generator=generator)]


def other_ids(rule: InputRule, ids: Tensor, generator: torch.Generator) -> Tensor:
    """Ids that differ from the given ones everywhere, where the vocabulary has two real ids or more."""
    shape = (ids.shape[0], ids.shape[1])
    drawn = random_ids(rule, shape, generator).to(ids.device)
    for _ in range(20):
        drawn = torch.where(drawn == ids, random_ids(rule, shape, generator).to(ids.device), drawn)
    return drawn


def lengths_for(graph: Graph, wanted: Mapping[str, int] | None) -> dict[str, int]:
    """A length for every input. Raises InputError for an unknown input, or a length beyond its position table."""
    most = max_input_lengths(graph)
    chosen = dict(wanted or {})
    for name, length in chosen.items():
        if name not in most:
            raise InputError(Diagnostic("TFK073", f"the model has no input `{name}`", f"inputs: {', '.join(most)}"))
        limit = most[name]
        if length < 1 or (limit is not None and length > limit):
            raise InputError(Diagnostic("TFK073", f"`{name}` cannot have length {length}", f"1 to {limit or 'any length'}"))
    for number, (name, limit) in enumerate(most.items()):
        usual = USUAL[number % len(USUAL)]
        chosen.setdefault(name, min(usual, limit or usual))
    return {name: chosen[name] for name in most}
