"""The page of one model, and that of two models side by side with their differences marked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...graph import Batch, Graph, graph_of, max_input_lengths
from ...spec import ModelSpec
from ..diff_data import Side, differences
from ..formatting import resolved_words, scaled
from ..model_data import model_data
from ..pages import page
from .boxes import BYTES, counted
from .layout import Drawing, drawing
from .marks import Marks, marks_of
from .svg import geometry, svg

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Table:
    """A table of a page. `numbers` are the columns that align at the right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int]


def model_drawing(data: Mapping[str, Any], marks: Marks | None = None) -> Drawing:
    """The drawing of `model_data`, with a line about the whole model."""
    return drawing(data, facts(data), marks or Marks())


def facts(data: Mapping[str, Any]) -> str:
    """Parameters and costs of a model, in one line."""
    batch = data["batch"]
    lengths = "".join(f", {name}={length}" for name, length in batch["lengths"].items())
    costs = f"{scaled(data['flops'], 'FLOPs')}, {scaled(data['activation_elements'] * BYTES, 'B')} of activations"
    count = counted(data["parameters"] + data["frozen_parameters"])
    return f"{count}. One forward pass of batch {batch['size']}{lengths}: {costs}. Numbers of layers include repetitions."


def model_page(data: Mapping[str, Any]) -> str:
    """The page of `model_data`: the drawing, and the same numbers as a table."""
    about = [text for text in (data["description"], data["reference"]) if text]
    return _page(data["name"], about, [(data["name"], model_drawing(data))], [_numbers(data)])


def diff_drawings(a: Side, b: Side, data: Mapping[str, Any]) -> list[tuple[str, Drawing]]:
    """The drawings of two models, from `diff_data`. Boxes that differ have a dashed frame and a line that names the fields."""
    all_differences = list(differences(a.spec, b.spec))
    counts = {row["name"]: (row["a"], row["b"]) for row in data["nodes"]}
    return [
        (
            f"{name} ({side.file})",
            model_drawing(model_data(side.spec, side.graph, side.batch), marks_of(all_differences, counts, at)),
        )
        for at, (name, side) in enumerate((("A", a), ("B", b)))
    ]


def diff_page(a: Side, b: Side, data: Mapping[str, Any]) -> str:
    """The page of two models side by side."""
    fields = [
        [row["field"], resolved_words(row["a"]), resolved_words(row["b"]), ", ".join(row["where"])] for row in data["fields"]
    ]
    sizes = [[row["name"].replace("_", " "), f"{row['a']:,}", f"{row['b']:,}"] for row in data["counts"]]
    tables = [
        Table("Fields that differ", ["field", "A", "B", "where"], fields, frozenset()),
        Table("Sizes and costs", ["size", "A", "B"], sizes, frozenset({1, 2})),
    ]
    words = "The models are equal." if data["equal"] else "A dashed frame and the sign ≠ or + mark boxes that differ."
    title = f"{a.spec.name} and {b.spec.name}"
    return _page(title, [words], diff_drawings(a, b, data), tables[1 - bool(fields) :])


def _page(title: str, lines: Sequence[str], drawings: Sequence[tuple[str, Drawing]], tables: Sequence[Table]) -> str:
    prefixes = [f"{letter}-" for letter, _ in zip("ab", drawings, strict=False)]
    return page(
        HERE / "drawings.html",
        script=(HERE / "drawings.js").read_text(encoding="utf-8"),
        data=[geometry(drawing, prefix) for prefix, (_, drawing) in zip(prefixes, drawings, strict=True)],
        title=title,
        facts=lines,
        drawings=[
            (name, svg(drawing, prefix, interactive=True)) for prefix, (name, drawing) in zip(prefixes, drawings, strict=True)
        ],
        tables=tables,
    )


def _numbers(data: Mapping[str, Any]) -> Table:
    columns = ["part", "kind", "shape", "parameters", "FLOPs", "activations"]
    return Table("Sizes and costs", columns, [*map(list, _rows(data["nodes"]))], frozenset({3, 4, 5}))


def _rows(nodes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for node in nodes:
        shape = f"({', '.join(map(str, node['shape']))})"
        yield (node["name"], node["kind"], shape, f"{node['parameters'] + node['frozen_parameters']:,}", *_costs(node))
        yield from _inside(node["name"], node.get("layers", ()), "")


def _inside(name: str, groups: Sequence[Mapping[str, Any]], times: str) -> Iterator[tuple[str, ...]]:
    for group in groups:
        factor = f"{times}{group['repeat']:,} x " if group["repeat"] > 1 else times
        yield from _inside(name, group.get("layers", ()), factor)
        for part in group.get("sublayers", ()):
            yield (f"{name}: {factor}{part['name']}", part["kind"], "", f"{part['parameters']:,}", *_costs(part))


def _costs(part: Mapping[str, Any]) -> tuple[str, str]:
    return f"{part['flops']:,}", scaled(part["activation_elements"] * BYTES, "B")


USUAL = 32
"""Positions of an input."""


def graph_html(graph: Graph, spec: ModelSpec | None = None) -> str:
    """The drawing of a graph for a batch of one row."""
    lengths = {name: min(USUAL, limit or USUAL) for name, limit in max_input_lengths(graph).items()}
    data = model_data(spec, graph, Batch(1, lengths))
    prefix = hashlib.sha256(repr(data).encode()).hexdigest()[:8]  # ids of several drawings in one notebook differ
    return f'<div style="overflow-x: auto">{svg(model_drawing(data), f"m{prefix}-")}</div>'


def model_html(spec: ModelSpec) -> str:
    """The drawing of a built model, from its spec."""
    return graph_html(graph_of(spec), spec)
