"""The cells that `tfkit bench attention` would measure, and how large they are: name, family, batch, heads, length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def cells_data(cells: Iterable[Any], scale: Any) -> list[dict[str, Any]]:
    """One object for each cell of `tfkit_conformance.bench.cells`; `length` is nominal where sentences are drawn."""
    return [
        {"name": cell.name, "family": cell.family, "training": cell.training, "batch": cell.batch(scale),
         "heads": cell.heads(scale)[0], "kv_heads": cell.heads(scale)[1], "length": cell.length, "head_dim": cell.head_dim}
        for cell in cells
    ]  # fmt: skip


def cells_text(rows: list[dict[str, Any]]) -> str:
    """A line each."""
    wide = max(len(row["name"]) for row in rows)
    return "\n".join(
        f"{row['name']:<{wide}}  {row['batch']} x {row['length']}, {row['heads']} heads of {row['head_dim']}"
        + (f", {row['kv_heads']} of keys" if row["kv_heads"] != row["heads"] else "")
        for row in rows
    )
