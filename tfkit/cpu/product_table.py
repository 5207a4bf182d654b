"""A measured table of the fastest product y = x W^T + b while decoding, which comes before the rule of small_batch.py.

A weight of another size takes the rows of the nearest measured weight, if neither dimension is more than `NEAR` times as large
or as small. Where the table says nothing, the rule decides. The form of the file is in `tfkit.cpu.product_table_file`.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ..slots.lazy import load
from ..slots.processor_kernels import Float32Kernel
from . import products

NEAR = 2.0
MAX_CHOICES = 100_000
"""Choices that a table keeps."""
Kernel = Literal["mkl", "onednn", "transposed", "packed", "installed"]


@dataclass(frozen=True)
class Choice:
    """The kernels for a product, tried in this order; MKL's product if none of them can compute it.

    Args:
        installed: the installed kernel (`tfkit.plugin.Float32Kernel`) with a packed weight.
        packed: oneDNN with a packed weight.
        onednn: oneDNN with the plain weight.
        transposed: W times the rows as columns.
    """

    packed: bool = False
    onednn: bool = False
    transposed: bool = False
    installed: bool = False


@dataclass(frozen=True)
class ProductRow:
    """The fastest kernels for one weight and some numbers of rows.

    Args:
        threads: torch's threads.
        outputs: out of W (out, in).
        inputs: in of W (out, in).
        rows: the first and the last number of rows, both included; the last is null for any number.
        fastest: the fastest kernel.
        unpacked: the fastest one with a plain weight, used until a weight is packed.
    """

    threads: int
    outputs: int
    inputs: int
    rows: tuple[int, int | None]
    fastest: Kernel
    unpacked: Kernel


class ProductTable:
    """The rows of a table, by threads and weight.

    Args:
        name: the name of its file, for `plan` and `doctor`.
        rows: all rows.
    """

    def __init__(self, name: str, rows: Sequence[ProductRow]) -> None:
        self.name = name
        self._rows: dict[int, dict[tuple[int, int], list[ProductRow]]] = {}
        for row in rows:
            self._rows.setdefault(row.threads, {}).setdefault((row.outputs, row.inputs), []).append(row)
        self._found: dict[tuple[int, int, int, int], Choice | None] = {}

    @property
    def threads(self) -> list[int]:
        """The numbers of threads that were measured."""
        return sorted(self._rows)

    @property
    def weights(self) -> int:
        """How many sizes of weights were measured."""
        return len({size for sizes in self._rows.values() for size in sizes})

    def choice(self, count: int, outputs: int, inputs: int) -> Choice | None:
        """The fastest kernels with torch's present number of threads.

        Args:
            count: the number of rows of x.
            outputs: out of W (out, in).
            inputs: in of W (out, in).

        Returns:
            The kernels, or None where the table says nothing.
        """
        key = (torch.get_num_threads(), count, outputs, inputs)
        if key not in self._found:
            if len(self._found) == MAX_CHOICES:
                self._found.clear()
            self._found[key] = self._search(*key)
        return self._found[key]

    def _search(self, threads: int, count: int, outputs: int, inputs: int) -> Choice | None:
        def ratios(size: tuple[int, int]) -> tuple[float, float]:
            return abs(math.log(size[0] / outputs)), abs(math.log(size[1] / inputs))

        near = [size for size in self._rows.get(threads, {}) if max(ratios(size)) <= math.log(NEAR)]
        if not near:
            return None
        for row in self._rows[threads][min(near, key=lambda size: (sum(ratios(size)), size))]:
            first, last = row.rows
            if first <= count and (last is None or count <= last):
                plain = row.unpacked == "onednn", row.unpacked == "transposed"
                return Choice(row.fastest == "packed", *plain, row.fastest == "installed")
        return None


def product_machine() -> dict[str, str]:
    """What the time of a product depends on.

    Returns:
        `processor`, `capability` (the instruction set of torch's kernels) and `torch` (its version), as in a table.
    """
    return {
        "processor": products.processor_fact("model name") or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__).partition("+")[0],
    }


def transposed_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b as the transpose of W x^T + b, x (N, in), W (out, in), b (out,) -> (N, out)."""
    columns = torch.mm(weight, x.t()) if bias is None else torch.addmm(bias[:, None], weight, x.t())  # (out, N)
    return columns.t().contiguous()


def product_kernels(
    weight: Tensor, bias: Tensor | None, installed: Float32Kernel | None = None
) -> dict[Kernel, Callable[[Tensor], Tensor]]:
    """The kernels that this torch has, and an installed one, for measuring and for comparing them.

    Args:
        weight: W (out, in), float32 on the CPU.
        bias: b (out,), or None.
        installed: the kernel of a plugin, or None.

    Returns:
        By name, the function x (N, in) -> x W^T + b (N, out). Those of `packed` and `installed` have packed the weight.
    """
    kernels: dict[Kernel, Callable[[Tensor], Tensor]] = {"mkl": lambda x: functional.linear(x, weight, bias)}
    if products.MULTIPLY is not None:
        kernels["onednn"] = lambda x: products.product(x, weight, bias)
    kernels["transposed"] = lambda x: transposed_product(x, weight, bias)
    if products.PACK is not None:
        packed = products.PACK(weight, None)
        kernels["packed"] = lambda x: products.product(x, packed, bias)
    if installed is not None:
        kernels["installed"] = partial(load(installed.multiply), packed=load(installed.pack)(weight), bias=bias)
    return kernels
