"""Puts an error into one built model, and nowhere else.

A method is replaced on the one module, bound to it, so that a copy of the model carries the mutant bound to the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from tfkit import DecodingState, Model
from tfkit.inspection import Stack
from tfkit.nn.runtime.decoding_state import KeyValueCache
from tfkit.plugin.model_parts import MultiHeadAttention, StackContext


def swap(module: nn.Module, name: str, method: Callable[..., Any]) -> None:
    """Replace a method of one module; `method` takes the module first."""
    object.__setattr__(module, name, MethodType(method, module))


def each(model: Model, kind: type[nn.Module]) -> Iterator[Any]:
    return (module for module in model.modules() if isinstance(module, kind))


def attentions(model: Model, cross: bool) -> list[MultiHeadAttention]:
    return [module for module in each(model, MultiHeadAttention) if module.config.cross is cross]


def stack(model: Model, causal: bool) -> Stack:
    found: Stack = next(module for module in each(model, Stack) if module.causal is causal)
    return found


def with_run(module: MultiHeadAttention, change: Callable[[MultiHeadAttention, StackContext], StackContext]) -> None:
    """Gives an attention another run of its stack, with a memo of its own."""

    def forward(self: MultiHeadAttention, x: Tensor, run: StackContext, index: int) -> Tensor:
        return MultiHeadAttention.forward(self, x, change(self, run.changed(memo={})), index)

    swap(module, "forward", forward)


class TamperedCache:
    """A cache between the model and the real one; `write` and `reorder` are the mutant's, or go through."""

    def __init__(
        self,
        capacity: int,
        write: Callable[[KeyValueCache, int, Tensor, Tensor], tuple[Tensor, Tensor]] | None,
        reorder: Callable[[KeyValueCache, Tensor], None] | None,
    ) -> None:
        self.real, self._write, self._reorder = KeyValueCache(capacity), write, reorder

    def write(self, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return self._write(self.real, start, key, value) if self._write else self.real.write(start, key, value)

    def reorder(self, rows: Tensor) -> None:
        if self._reorder:
            self._reorder(self.real, rows)
        else:
            self.real.reorder(rows)


def with_caches(
    model: Model,
    write: Callable[[KeyValueCache, int, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    reorder: Callable[[KeyValueCache, Tensor], None] | None = None,
) -> Model:
    """Replaces the key/value caches of decoding."""

    def begin(self: Model, *arguments: Any, **keywords: Any) -> DecodingState:
        state = Model.start(self, *arguments, **keywords)
        names = [site for attention, _, site in self.attention_sites() if not attention.config.cross]
        state.caches = {site: TamperedCache(state.capacity, write, reorder) for site in names}  # type: ignore[misc]
        return state

    swap(model, "start", begin)
    return model


def with_step(model: Model, before: Callable[[DecodingState], None]) -> Model:
    """Calls `before` on the decoding state before every step."""

    def step(self: Model, state: DecodingState, *arguments: Any, **keywords: Any) -> Any:
        before(state)
        return Model.step(self, state, *arguments, **keywords)

    swap(model, "step", step)
    return model


def turned(key: Tensor, upto: int) -> Tensor:
    """Keys (B,G,K,D) whose first `upto` positions are rotated by their position, pair by pair."""
    angle = torch.arange(key.shape[2], device=key.device, dtype=torch.float64)[:, None]
    angle = torch.where(angle < upto, angle, 0.0)
    first, second = key.chunk(2, dim=-1)
    cosine, sine = angle.cos().to(key.dtype), angle.sin().to(key.dtype)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
