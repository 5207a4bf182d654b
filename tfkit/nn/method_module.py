"""Parts that act by methods: position schemes (`embed`, `rotate`, `bias`), cells (`project`, `step`), scores (`map_keys`).

What other libraries register on a module (hooks, FSDP, offloading) acts in calls of the module alone. So a model uses the
methods of its parts by calls.
"""

from __future__ import annotations

from typing import Any

from torch import nn


class MethodModule(nn.Module):
    """`module("embed", x, span)` is `module.embed(x, span)` as a call of the module.

    A part of a plugin that has weights of its own may derive from this class, so that hooks, FSDP and offloading act on it.
    """

    def __init__(self) -> None:
        super().__init__()

    def forward(self, method: str, *arguments: Any) -> Any:
        """What a method returns.

        Args:
            method: the name of the method.
            arguments: its arguments.

        Returns:
            Its result.
        """
        return getattr(self, method)(*arguments)


def use(part: Any, method: str, *arguments: Any) -> Any:
    """`part.method(*arguments)`, as a call of the part if it is a `MethodModule`."""
    return part(method, *arguments) if isinstance(part, MethodModule) else getattr(part, method)(*arguments)
