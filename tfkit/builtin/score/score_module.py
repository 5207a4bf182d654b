"""A score as a module whose two methods are used by calls."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...plugin.model_parts import MethodModule


class ScoreModule(MethodModule):
    """`module(query, mapped)` is `module.scores(query, mapped)`; `module("map_keys", key)` is `module.map_keys(key)`."""

    def forward(self, *arguments: Any) -> Any:
        return super().forward(*arguments) if isinstance(arguments[0], str) else self.scores(*arguments)

    def scores(self, query: Tensor, mapped: Tensor) -> Tensor:
        """Query (B,H,Q,D) and mapped key (B,G,K,E) to scores (B,H,Q,K)."""
        raise NotImplementedError
