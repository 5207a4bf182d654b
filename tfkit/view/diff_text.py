"""The text output of `tfkit diff`: fields, tensors, and last the counts side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from .formatting import NOTHING, resolved_words, scaled
from .terminal import shown

COUNTS = {
    "parameters": "parameters", "frozen_parameters": "frozen parameters", "flops": "FLOPs", "activation_bytes": "activations",
    "weight_bytes": "weights",
}  # fmt: skip


def diff_text(data: Mapping[str, Any]) -> list[RenderableType]:
    """The text of `diff_data`."""
    parts: list[RenderableType] = [_heads(data)]
    if data["fields"]:
        table = _table("field", "A", "B", "where")
        for row in data["fields"]:
            table.add_row(
                row["field"],
                resolved_words(row["a"]),
                resolved_words(row["b"]),
                Text(", ".join(row["where"]) or "the model", "dim"),
            )
        parts += ["", table]
    if data["tensors"] or data["saved"]:
        table = _table("tensor", "A", "B")
        for row in data["tensors"]:
            table.add_row(row["name"], _tensors(row["a"]), _tensors(row["b"]))
        for row in data["saved"]:
            table.add_row(SAVED[row["name"]], row["a"][:12], row["b"][:12])
        parts += ["", table]
    return [*parts, "", _counts(data), "", *_notes(data)]


SAVED = {"dtype": "dtype of the weights", "weights": "values of the weights (SHA-256)"}


def _heads(data: Mapping[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for letter in ("a", "b"):
        side = data[letter]
        what = (
            f"saved model, {side['dtype']}"
            if side["saved"]
            else f"spec{', changed: ' if side['changed'] else ''}{' '.join(map(shown, side['changed']))}"
        )
        grid.add_row(
            Text(letter.upper(), "bold"), Text(shown(side["name"])), Text(shown(side["file"]), "cyan"), Text(what, "dim")
        )
    return grid


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _tensors(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return NOTHING
    if facts["shape"] is None:
        several = "tensor" if facts["tensors"] == 1 else "tensors"
        return f"{facts['tensors']:,} {several}, {scaled(facts['parameters'], '')}".rstrip()
    return f"({', '.join(map(str, facts['shape']))}){'' if facts['trainable'] else ' frozen'}"


def _counts(data: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("count")
    for name in ("A", "B", "B - A", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for row in data["counts"]:
        one, two = row["a"], row["b"]
        if not (one or two) and row["name"] == "frozen_parameters":
            continue
        exact = row["name"].endswith("parameters")
        cells = [f"{count:,}" if exact else _scaled(count, row["name"]) for count in (one, two)]
        more = (f"{two - one:+,}" if exact else _signed(two - one, row["name"])) if one != two else "0"
        table.add_row(Text(COUNTS[row["name"]], "bold"), *cells, more, _percent(one, two))
        for node in data["nodes"] if row["name"] == "parameters" else ():
            counts = [NOTHING if node[letter] is None else f"{node[letter]:,}" for letter in ("a", "b")]
            more = f"{(node['b'] or 0) - (node['a'] or 0):+,}"
            table.add_row(f"  in {node['name']}", *counts, more, _percent(node["a"], node["b"]), style="dim")
    return table


def _scaled(number: int, name: str) -> str:
    return scaled(number, "B" if name.endswith("bytes") else "").strip()


def _signed(number: int, name: str) -> str:
    return f"{'-' if number < 0 else '+'}{_scaled(abs(number), name)}"


def _percent(one: int | None, two: int | None) -> str:
    return f"{100 * (two - one) / one:+.1f}%" if one and two is not None and one != two else ""


def _notes(data: Mapping[str, Any]) -> list[Text]:
    batches = {letter: _batch(data[letter]["batch"]) for letter in ("a", "b")}
    same = batches["a"] == batches["b"]
    batch = batches["a"] if same else f"{batches['a']} (A) and {batches['b']} (B)"
    dtypes = {data[letter]["dtype"] for letter in ("a", "b")}
    dtype = dtypes.pop() if len(dtypes) == 1 else f"{data['a']['dtype']} (A) and {data['b']['dtype']} (B)"
    counts = f"FLOPs and activations (float32) are those of one forward pass of {batch}. Weights are in {dtype}."
    if data["equal"]:
        files = " and the files of their weights are equal" if data["a"]["saved"] and data["b"]["saved"] else ""
        return [Text(counts, "dim"), Text(f"EQUAL: the models are the same{files}.", "bold green")]
    differing = [("field", len(data["fields"])), ("tensor", sum(_number(row) for row in data["tensors"]))]
    words = [f"{number:,} {name}{'s' if number > 1 else ''}" for name, number in differing if number]
    words += [SAVED[row["name"]].partition(" (")[0] for row in data["saved"]]
    return [Text(counts, "dim"), Text(f"DIFFERENT: {', '.join(words)}.", "bold")]


def _number(row: Mapping[str, Any]) -> int:
    return max(int(row[letter]["tensors"]) for letter in ("a", "b") if row[letter] is not None)


def _batch(batch: Mapping[str, Any]) -> str:
    lengths = " ".join(f"{name}={length}" for name, length in batch["lengths"].items())
    return f"batch {batch['size']}" + (f", lengths {lengths}" if lengths else "")
