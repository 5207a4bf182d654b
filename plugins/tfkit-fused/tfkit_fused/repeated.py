"""Launches a kernel again as before, skipping Triton's inspection of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from . import INTERPRETED

MOST_KINDS = 4096
"""Kinds of launches that are remembered; then all are forgotten."""


class Repeated:
    """Launches one kernel. Triton asks sixty arguments whether they are 1 or a multiple of 16, which takes longer than a small
    kernel runs; here the caller says by a key which launches do not differ in that, and in what is constant."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: dict[Hashable, tuple[Any, tuple[Any, ...]]] = {}

    def __call__(self, key: Hashable, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        """Run `programs` programs of the kernel.

        Args:
            key: Equal for launches with the same device, types, constants, and integers as far as kernels are specialised.
            programs: The size of the grid.
            arguments: Tensors, numbers and groups of these, in the kernel's order.
            constants: The rest of its arguments, and options of the launch.
        """
        known = self.compiled.get(key)
        if known is None:
            compiled = self.kernel[(programs,)](*arguments, **constants)
            if not INTERPRETED:
                if len(self.compiled) >= MOST_KINDS:
                    self.compiled.clear()
                names = self.kernel.arg_names[len(arguments) :]
                self.compiled[key] = compiled, tuple(constants.get(name) for name in names)
            return
        compiled, rest = known
        launch: Callable[..., None] = compiled[(programs, 1, 1)]
        launch(*arguments, *rest)
