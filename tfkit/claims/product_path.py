"""The most matrix products that must follow one another: each needs the result of the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PRODUCTS = {"addmm": 1, "mm": 1, "bmm": 1, "baddbmm": 1, "addmv": 1, "mv": 1, "_scaled_dot_product": 2}
"""Matrix products of an operation of torch, by the beginning of its name."""


class ProductPath(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts along the operations that run. What is computed in place counts for its whole storage."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.depths: dict[int, int] = {}
        self.alive: list[Tensor] = []  # an address must not be used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        products = max((count for begin, count in PRODUCTS.items() if name.startswith(begin)), default=0)
        depth = products + max((self.depths.get(self._place(tensor), 0) for tensor in _tensors((args, kwargs))), default=0)
        for tensor in _tensors(result):
            self.alive.append(tensor)
            self.depths[self._place(tensor)] = max(self.depths.get(self._place(tensor), 0), depth)
        return result

    @staticmethod
    def _place(tensor: Tensor) -> int:
        return tensor.untyped_storage().data_ptr()


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def products_in_a_row(call: Callable[[], Tensor]) -> int:
    """The most products on a path to the result of a call. Use float64: other kernels may hide products."""
    path = ProductPath()
    with path:
        result = call()
    return path.depths.get(path._place(result), 0)
