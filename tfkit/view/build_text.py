"""The text output of `tfkit build`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from .model_tree import cost_lines, model_tree
from .terminal import shown


def build_text(data: Mapping[str, Any]) -> list[RenderableType]:
    """The tree of the model, the backends by site, the result of the dry run, and the directory of the model."""
    parts: list[RenderableType] = [model_tree(data), ""]
    if data["backends"]:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(overflow="fold")
        table.add_column(overflow="fold")
        for site, backend in data["backends"].items():
            table.add_row(Text(site), Text(backend, "bold green"))
        parts += [Text("attention backends in training, by the longer of queries and keys"), table, ""]
    outputs = ", ".join(f"{name} {_shape(shape)}" for name, shape in data["trial"]["outputs"].items())
    inputs = ", ".join(f"{name} {_shape(shape)}" for name, shape in data["trial"]["inputs"].items())
    parts += [Text(f"built on {data['device']} in {data['dtype']}, seed {data['seed']}")]
    parts += [Text(f"ran once: {inputs} -> {outputs}, all finite"), cost_lines(data)[0]]
    if data["directory"] is not None:
        parts.append(Text(f"saved to {shown(data['directory'])}"))
    return parts


def _shape(shape: list[int]) -> str:
    return f"({', '.join(map(str, shape))})"
