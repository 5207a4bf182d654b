"""A row of the table of `auto`, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..attention.auto_table import AutoRow

CONDITIONS = {
    "gradients": ("gradients", "no gradients"),
    "dropout": ("dropout", "no dropout"),
    "masked": ("masked", "not masked"),
    "biased": ("biased", "no bias"),
    "bias_gradient": ("a bias that learns", "no bias that learns"),
    "decoding": ("one query", "more than one query"),
    "compiled": ("compiled", "not compiled"),
}
"""The text of each condition of a row: if true, if false."""


LIMITS = {"head_dims": "head dims", "scores": "scores"}


def row_data(row: AutoRow) -> dict[str, Any]:
    """A row as JSON data.

    Args:
        row: a row of the table.

    Returns:
        `dtypes`, `lengths`, `head_dims` and `scores` where they are limited, `conditions`, `capability`, `relative_time`,
        `measured`, `published` and `estimated`.
    """
    conditions = {name: getattr(row, name) for name in CONDITIONS if getattr(row, name) is not None}
    limits = {name: list(getattr(row, name)) for name in LIMITS if getattr(row, name) != (1, None)}
    return {
        "dtypes": sorted(row.dtypes), "lengths": list(row.lengths), **limits, "conditions": conditions,
        "capability": list(row.capability) if row.capability else None, "relative_time": row.relative_time,
        "measured": row.measured or None, "published": row.published or None, "estimated": row.estimated or None,
    }  # fmt: skip


def row_in_words(row: Mapping[str, Any]) -> str:
    """A row as text.

    Args:
        row: the data of the row, from `row_data`.

    Returns:
        `float32, lengths 97 up, no gradients, no dropout`.
    """
    low, high = row["lengths"]
    lengths = "any length" if (low, high) == (1, None) else f"lengths {_range(low, high)}"
    limits = [f"{words} {_range(*row[name])}" for name, words in LIMITS.items() if name in row]
    return ", ".join(
        [*row["dtypes"], lengths, *limits, *(CONDITIONS[name][not holds] for name, holds in row["conditions"].items())]
    )


def _range(low: int, high: int | None) -> str:
    return f"{low} {'up' if high is None else f'to {high}'}"
