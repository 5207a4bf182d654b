"""Errors in the state of decoding: caches, memories, positions and padding of earlier steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tfkit import DecodingState, Model
from tfkit.inspection import Tokens
from tfkit.nn.runtime.decoding_state import KeyValueCache

from .tampering import each, swap, turned, with_step


def one_off(cache: KeyValueCache, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    keys, values = cache.write(start, key, value)
    return torch.cat([keys[:, :, 1:], keys[:, :, :1]], 2), values


def kept(cache: KeyValueCache, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    written = cache.length
    if cache.key is None or cache.value is None or written <= start:
        return cache.write(start, key, value)
    old = min(written - start, key.shape[2])
    key, value = key.clone(), value.clone()
    key[:, :, :old] = cache.key[:, :, start : start + old]
    value[:, :, :old] = cache.value[:, :, start : start + old]
    return cache.write(start, key, value)


def appended(cache: KeyValueCache, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    keys, values = cache.write(max(start, cache.length), key, value)
    wanted = start + key.shape[2]
    return keys[:, :, -wanted:], values[:, :, -wanted:]


def forgets(cache: KeyValueCache, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    grows = cache.key is not None and cache.key.shape[2] < start + key.shape[2]
    keys, values = cache.write(start, key, value)
    if grows:
        keys[:, :, :start], values[:, :, :start] = 0.0, 0.0
    return keys, values


def last_row(cache: KeyValueCache, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    keys, values = cache.write(start, key, value)
    return keys, values[:1].expand_as(values)


def turned_again(cache: KeyValueCache, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    keys, values = cache.write(start, key, value)
    return turned(keys, start), values


def wrong_from(first: int) -> Callable[[KeyValueCache, int, Tensor, Tensor], tuple[Tensor, Tensor]]:
    def write(cache: KeyValueCache, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = cache.write(start, key, value)
        return keys, torch.cat([values[:, :, :first], values[:, :, first - 1 : -1]], 2) if values.shape[2] > first else values

    return write


def wrong_rows_from(first: int) -> Callable[[KeyValueCache, int, Tensor, Tensor], tuple[Tensor, Tensor]]:
    def write(cache: KeyValueCache, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = cache.write(start, key, value)
        return keys, torch.cat([values[:first], values[first - 1 : -1]]) if len(values) > first else values

    return write


def keys_only(cache: KeyValueCache, rows: Tensor) -> None:
    if cache.key is not None:
        cache.key = cache.key.index_select(0, rows)
        cache.value = cache.value[: len(rows)] if cache.value is not None else None


def rolled(state: DecodingState) -> None:
    for site, (key, value) in state.crossed.items():
        state.crossed[site] = (key.roll(1, 0), value.roll(1, 0))


def crossed_stay(model: Model) -> Model:
    def reorder(self: DecodingState, rows: Tensor) -> None:
        crossed = {site: (key[: len(rows)], value[: len(rows)]) for site, (key, value) in self.crossed.items()}
        DecodingState.reorder(self, rows)
        self.crossed = crossed

    def begin(self: Model, *arguments: Any, **keywords: Any) -> DecodingState:
        state = Model.start(self, *arguments, **keywords)
        object.__setattr__(state, "reorder", partial(reorder, state))
        return state

    swap(model, "start", begin)
    return model


def offset_stuck(model: Model) -> Model:
    for module in each(model, Tokens):
        if module.position is not None:

            def embed(self: Any, x: Tensor, span: Any) -> Tensor:
                return type(self).embed(self, x, replace(span, offset=0))  # type: ignore[no-any-return]

            swap(module.position, "embed", embed)
    return model


def padding_of_steps_lost(model: Model) -> Model:
    def before(state: DecodingState) -> None:
        state.visible = None if state.visible is None else torch.ones_like(state.visible)

    return with_step(model, before)
