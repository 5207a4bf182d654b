"""The page of the position schemes of a model."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...nn.position_values import PositionValues
from ..pages import page
from .figures import PLACES, draw

SHOWN = 8
"""Rows and columns of the table of numbers."""


@dataclass(frozen=True)
class Picture:
    """A picture in both themes, with the first numbers of its table."""

    title: str
    light: str
    dark: str
    about: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


def positions_page(title: str, groups: Sequence[Sequence[tuple[str, PositionValues]]]) -> str:
    """The page.

    Args:
        title: the name of the model.
        groups: for each scheme, its rows: a title and values; two rows where models are compared.
    """
    sections = [(f"{rows[0][1].name}: {rows[0][1].kind}", [_picture(*row) for row in rows]) for rows in groups]
    return page(Path(__file__).with_name("positions.html"), title=f"Positions of {title}", sections=sections)


def _picture(title: str, values: PositionValues) -> Picture:
    light, dark = (
        f"data:image/png;base64,{base64.b64encode(draw([(title, values)], 'png', theme)).decode()}"
        for theme in ("light", "dark")
    )
    table, bias = values.table, values.place == "scores"
    if bias:  # the nearest distances
        start = max(-values.first - SHOWN + 1, 0)
        part, columns = table[:SHOWN, start : start + SHOWN], [f"{values.first + start + at}" for at in range(SHOWN)]
    else:
        part, columns = table[:SHOWN, :SHOWN], [str(at) for at in range(SHOWN)]
    word = "head" if bias else "position"
    rows = [(f"{word} {number}", [f"{value:.4g}" for value in row]) for number, row in enumerate(part.tolist())]
    size = f"{table.shape[0]} {word}s x {table.shape[1]} {'distances' if bias else 'features'}"
    weights = "learned" if values.learned else "no weights"
    about = f"{title}, {PLACES[values.place]}, {weights}, {size}"
    return Picture(title, light, dark, about, columns[: part.shape[1]], rows)
