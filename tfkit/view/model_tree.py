"""The text output of `tfkit show`: the nodes as a tree, equal layers grouped, numbers in columns at the right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from .formatting import percent, scaled
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
    outputs = ", ".join(f"{name} {_weight_shape(shape)}" for name, shape in data["trial"]["outputs"].items())
    inputs = ", ".join(f"{name} {_weight_shape(shape)}" for name, shape in data["trial"]["inputs"].items())
    parts += [Text(f"built on {data['device']} in {data['dtype']}, seed {data['seed']}")]
    parts += [Text(f"ran once: {inputs} -> {outputs}, all finite"), cost_lines(data)[0]]
    if data["directory"] is not None:
        parts.append(Text(f"saved to {shown(data['directory'])}"))
    return parts


def _weight_shape(shape: list[int]) -> str:
    return f"({', '.join(map(str, shape))})"


NUMBER = 14
"""Columns of a parameter count: enough for 10^13, the limit of a spec."""
BYTES = 4
"""Bytes of a float32 activation."""


def model_tree(data: Mapping[str, Any]) -> Tree:
    """The tree of `model_data`."""
    total, flops = data["parameters"] + data["frozen_parameters"], data["flops"]
    head = _line(Text(shown(data["name"]), "bold"), "parameters", "share", "FLOPs")
    tree = Tree(_rows(head, _line(Text(shown(data["reference"] or ""), "dim"), f"{total:,}", "", scaled(flops, ""))))
    width = max(len(node["name"]) for node in data["nodes"])
    for node in data["nodes"]:
        count = node["parameters"] + node["frozen_parameters"]
        what = Text(f"{node['name']:<{width}}  ", "bold").append(f"{node['kind']} ", "cyan").append(_shape(node["shape"]), "")
        label = _line(what, f"{count:,}", percent(count, total), percent(node["flops"], flops))
        branch = tree.add(_rows(label, Text(_notes(node, data["outputs"]), "dim")))
        _layers(branch, node.get("layers", []), total)
        for name, size in node.get("other_parameters", {}).items():
            if size:
                branch.add(_line(Text(name), f"{size:,}", percent(size, total), ""))
    return tree


def _layers(branch: Tree, groups: list[dict[str, Any]], total: int) -> None:
    for group in groups:
        shared = " with one set of weights" if group["shared"] else ""
        times = f"{group['repeat']:,} x " if group["repeat"] > 1 else ""
        if "layers" in group:
            label = Text(f"{times}{len(group['layers'])} kinds of layer in turn{shared}")
            inner = branch.add(_line(label, f"{group['parameters']:,}", percent(group["parameters"], total), ""))
            _layers(inner, group["layers"], total)
            continue
        label = Text(f"{times}layer{shared}, ").append(group["summary"], "dim")
        layer = branch.add(_line(label, f"{group['parameters']:,}", percent(group["parameters"], total), ""))
        width = max((len(sublayer["name"]) for sublayer in group["sublayers"]), default=0)
        for sublayer in group["sublayers"]:
            kind = f"{sublayer['kind']}, " if sublayer["kind"] != sublayer["name"] else ""
            text = Text(f"{sublayer['name']:<{width}}  ").append(f"{kind}{sublayer['summary']}", "dim")
            layer.add(_line(text, f"{sublayer['parameters']:,}", percent(sublayer["parameters"], total), ""))
        if group["norms"]:
            layer.add(_line(Text("norms"), f"{group['norms']:,}", percent(group["norms"], total), ""))


def _notes(node: Mapping[str, Any], outputs: list[str]) -> str:
    notes = [
        f"reads {ref}" if field.split(".")[0] in ("input", "inputs") else f"{field.split()[0]} {ref}"
        for field, ref in node["reads"].items()
    ]
    if node["shares"]:
        notes.append(f"table of {node['shares']}")
    if node["summary"]:
        notes.append(node["summary"])
    for output in outputs:
        name, _, port = output.partition(".")
        if name == node["name"]:
            notes.append(f"{port} are an output of the model" if port else "output of the model")
    return ", ".join(notes)


def _shape(axes: list[str | int]) -> str:
    return f"({', '.join(map(str, axes))})"


def _line(what: Text, parameters: str, share: str, flops: str) -> Table:
    """A label with its numbers at the right edge, in the same columns at every depth."""
    grid = Table.grid(expand=True, padding=(0, 1, 0, 0))
    grid.add_column(ratio=1, overflow="fold")
    grid.add_column(justify="right", min_width=NUMBER, no_wrap=True)
    grid.add_column(justify="right", min_width=7, no_wrap=True)
    grid.add_column(justify="right", min_width=7, no_wrap=True)
    grid.add_row(what, parameters, share, flops)
    return grid


def _rows(*rows: Table | Text) -> Table:
    stack = Table.grid(expand=True)
    for row in rows:
        stack.add_row(row)
    return stack


def cost_lines(data: Mapping[str, Any]) -> list[Text]:
    """The costs of one forward pass by term, and the memory kept for the backward pass."""
    terms: dict[str, int] = {}
    for node in data["nodes"]:
        for cost in node["costs"]:
            terms[cost["term"]] = terms.get(cost["term"], 0) + cost["flops"]
    ordered = sorted(((flops, term) for term, flops in terms.items() if flops), reverse=True)
    parts = ", ".join(f"{term} {percent(flops, data['flops'])}" for flops, term in ordered)
    kept = scaled(data["activation_elements"] * BYTES, "B")
    batch = data["batch"]
    lengths = " ".join(f"{name}={length}" for name, length in batch["lengths"].items())
    return [
        Text(
            f"One forward pass of batch {batch['size']}{f', lengths {lengths}' if lengths else ''}: "
            + scaled(data["flops"], "FLOPs")
            + (f" ({parts})" if parts else "")
        ),
        Text(f"Its backward pass needs {kept} of activations in float32."),
    ]


def site_line(names: list[str], number: int) -> Text:
    word = "site" if number == 1 else "sites"
    return Text(f"{number} attention {word}" + (f": {', '.join(names)}" if names else ""))
