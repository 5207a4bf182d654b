"""What a recorded step repeats of a model: its modules with their attributes, and its weights.

A recorded step runs no module. So it may stand for the model only as long as all of this is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as module_calls

from ..nn.model import Model
from ..nn.tokens import TokenLogits


class ModelState:
    """The state of a model at one time. Values are compared by identity, weights by address and version. For a small
    model that takes 0.2 ms, for which each search waits.

    Args:
        model: The model.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.modules = list(model.modules())
        self.classes = [(type(module), type(module).forward) for module in self.modules]
        self.places = [place for module in self.modules for place in _places(module)]
        self.values = list(self._values())
        self.hooks = [hooks for module in self.modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        self.tensors = [value for value in self.values if isinstance(value, Tensor)]
        self.versions = None if any(tensor.is_inference() for tensor in self.tensors) else self._versions()

    def is_plain(self) -> bool:
        """Whether nothing wants to see the calls of modules, such as a hook or a function in place of `forward`, and each
        tensor has a version."""
        seen = (*self.hooks, module_calls._global_forward_hooks, module_calls._global_forward_pre_hooks)
        return self.versions is not None and not any(seen) and not any("forward" in vars(module) for module in self.modules)

    def holds(self, model: Model) -> bool:
        """Whether the model is the same and plain."""
        return (
            model is self.model
            and len(self.values) == sum(map(len, self.places))
            and all(map(is_, self.values, self._values()))
            and all(type(module) is kind and kind.forward is forward
                    for module, (kind, forward) in zip(self.modules, self.classes, strict=True))
            and self.is_plain()
            and self.versions == self._versions()
        )  # fmt: skip

    def _values(self) -> Iterator[Any]:
        return chain.from_iterable(map(dict.values, self.places))

    def _versions(self) -> list[tuple[int, int]]:
        return [(tensor.data_ptr(), tensor._version) for tensor in self.tensors]


def _places(module: nn.Module) -> Iterator[dict[Any, Any]]:
    """The attributes of a module, and those of them that are tables, of parameters or of backends; and its weights in int8."""
    yield vars(module)
    for name, value in vars(module).items():
        if isinstance(value, dict) and (not name.startswith("_") or name in ("_parameters", "_buffers", "_modules")):
            yield value
    if isinstance(module, TokenLogits) and module.low_precision is not None:
        yield vars(module.low_precision)
