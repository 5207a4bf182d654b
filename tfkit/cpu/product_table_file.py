"""The file of measured products for decoding on a CPU. `tfkit bench cpu --json FILE` writes it.

    {"tfkit_products": 1, "processor": "...", "capability": "AVX512", "torch": "2.13.0", "command": "...",
     "rows": [{"threads": 1, "outputs": 512, "inputs": 512, "rows": [1, 3], "fastest": "packed", "unpacked": "mkl"}]}

A row says which product of `rows` (first and last number, null for any) with a weight (outputs, inputs) is the fastest, and
which one with a plain weight, until the weight is packed. The file serves the processor, the instruction set and the torch that
it was measured with. Other keys of the file document the measurement.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import ConfigDict, Field, ValidationError

from ..errors import Diagnostic, InputError
from ..files import FileModel, parse_form, read_text, refusals
from . import small_batch
from .product_table import ProductRow, ProductTable, product_machine

FORM = 1
MOST_ROWS = 100_000
Count = Annotated[int, Field(ge=1, le=2**31)]


class _Row(FileModel):
    threads: Count
    outputs: Count
    inputs: Count
    rows: Annotated[list[Count | None], Field(min_length=2, max_length=2)]
    fastest: Literal["mkl", "onednn", "transposed", "packed", "installed"]
    unpacked: Literal["mkl", "onednn", "transposed"]


class _File(FileModel):
    model_config = ConfigDict(extra="ignore")
    processor: str
    capability: str
    torch: str
    rows: Annotated[list[_Row], Field(min_length=1, max_length=MOST_ROWS)]


def parse_product_table(text: str, where: str) -> ProductTable:
    """Parse a table of products.

    Args:
        text: the content of the file.
        where: its name, for error messages.

    Returns:
        The table.

    Raises:
        InputError: the text is not a valid table, or it was measured on another machine.
    """

    def refuse(reason: str) -> InputError:
        return InputError(Diagnostic("TFK064", f"{where}: {reason}", "measure one here: tfkit bench cpu --json FILE"))

    try:
        file = _File.model_validate(parse_form(text, "tfkit_products", FORM, "table of products"))
    except ValidationError as error:
        raise refuse(refusals(error)[0]) from None
    except ValueError as reason:
        raise refuse(str(reason)) from None
    for name, here in product_machine().items():
        there = getattr(file, name)
        if there != here:
            raise refuse(f"it was measured with the {name} {there[:80]!r}, and here it is {here!r}")
    rows: list[ProductRow] = []
    for number, row in enumerate(file.rows):
        first, last = row.rows
        if first is None or (last is not None and last < first):
            raise refuse(f"rows.{number}.rows: {row.rows} is not a first and a last number of rows")
        rows.append(ProductRow(row.threads, row.outputs, row.inputs, (first, last), row.fastest, row.unpacked))
    table = ProductTable(Path(where).name, rows)
    if torch.get_num_threads() not in table.threads:
        measured = ", ".join(map(str, table.threads))
        raise refuse(f"it was measured with threads: {measured}; here torch computes with {torch.get_num_threads()}")
    return table


def use_cpu_table(path: str | Path | None) -> None:
    """Choose the products of decoding on a CPU by a measured table: in this process, for all models, from now on.

    Args:
        path: a file that `tfkit bench cpu --json FILE` wrote on this machine; None for the built-in rule.

    Raises:
        InputError: the file cannot be read, is not a valid table, or was measured on another machine.
    """
    if path is None:
        small_batch.TABLE = None
        return
    try:
        text = read_text(path, descriptors=True)
    except OSError as reason:
        fix = "name a file that `tfkit bench cpu --json FILE` wrote"
        raise InputError(Diagnostic("TFK064", f"{path} cannot be read: {reason.strerror}", fix)) from None
    small_batch.TABLE = parse_product_table(text, str(path))
