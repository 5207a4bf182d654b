"""The boxes of a drawing: one for each node, with the layer groups and sub-layers of a stack inside. Sizes are in pixels."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..formatting import scaled
from .marks import Marks

WIDTH, PAD, LINE = 276, 10, 17
"""Width of a node, inner margin, height of a line."""
NAME, TEXT = 14, 12
"""Font sizes of names and of other text."""
BYTES = 4
"""Bytes of a float32 activation."""
LINES = 6
"""The largest number of lines of one note. The description of the box has the whole text."""
MOST_SINGLE = 100
"""The largest number of layers that are drawn one by one."""
FAMILIES = {
    "tokens": "embedding", "patches": "embedding", "features": "embedding", "convolutions": "embedding",
    "self_attention": "attention", "cross_attention": "memory", "ffn": "ffn",
}  # fmt: skip
"""The CSS classes of kinds; others are plain."""


@dataclass(frozen=True)
class Rectangle:
    x: float
    y: float
    width: float
    height: float
    style: str


@dataclass(frozen=True)
class Text:
    """A line of text. `end` aligns it with the right."""

    x: float
    y: float
    text: str
    style: str
    end: bool = False


Shape = Rectangle | Text


@dataclass(frozen=True)
class Face:
    """A box as it is drawn, from (0, 0): its height, its shapes, and the heights at which memories enter, by node."""

    height: float
    shapes: tuple[Shape, ...]
    entries: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Box:
    """A node. `note` describes it in one line for screen readers; `mark` says how it differs in a comparison. `single` has the
    layers one by one; None if no layer is repeated."""

    name: str
    note: str
    folded: Face
    unfolded: Face
    single: Face | None = None
    mark: str = ""

    @property
    def faces(self) -> tuple[Face, Face, Face]:
        """Folded, unfolded, and with single layers: the states of the script."""
        return self.folded, self.unfolded, self.single or self.unfolded


def box(node: Mapping[str, Any], outputs: Sequence[str], marks: Marks) -> Box:
    """The box of one node of `model_data`."""
    mark = fitted(marks.of_node(node["name"]), WIDTH - 2 * PAD)
    head = _header(node, outputs, mark)
    folded = Face(_bottom(head) + PAD - 4, (_frame(node["kind"], _bottom(head) + PAD - 4, mark), *head))
    layers = node.get("layers", ())
    unfolded = _unfolded(node, head, mark, marks, layers)
    repeats = 1 < depth(layers) <= MOST_SINGLE and any(group["repeat"] > 1 for group in layers)
    single = _unfolded(node, head, mark, marks, list(single_layers(layers))) if repeats else None
    return Box(node["name"], description(node), folded, unfolded, single, mark)


def _unfolded(
    node: Mapping[str, Any], head: Sequence[Shape], mark: str, marks: Marks, layers: Sequence[Mapping[str, Any]]
) -> Face:  # fmt: skip
    y, shapes, inside = _bottom(head), list(head), _Inside(node["name"], marks)
    for line in wrapped(node["summary"], WIDTH - 2 * PAD):
        y += LINE - 2
        shapes.append(Text(PAD, y, line, "note"))
    shapes += inside.groups(layers, PAD, y + 8, WIDTH - 2 * PAD, 0)
    y = _bottom(shapes)
    for name, size in node.get("other_parameters", {}).items():
        if size:
            y += LINE + 2
            shapes.append(Text(PAD, y, f"{fitted(name, 120)}: {counted(size)}", "note"))
    return Face(y + PAD, (_frame(node["kind"], y + PAD, mark), *shapes), inside.entries)


def description(node: Mapping[str, Any]) -> str:
    """A node in one line: kind, shape, numbers, what it reads."""
    words = [f"{node['name']}: {node['kind']}{_times(node)}", _shape(node), *numbers(node)]
    words += [f"{role.split()[0].split('.')[0]} {ref}" for role, ref in node["reads"].items()]
    words += [f"table of {node['shares']}"] if node["shares"] else []
    return ", ".join([*words, node["summary"]] if node["summary"] else words)


def numbers(part: Mapping[str, Any]) -> tuple[str, str]:
    """Parameters, and the costs of one forward pass."""
    count = part["parameters"] + part.get("frozen_parameters", 0)
    memory = scaled(part["activation_elements"] * BYTES, "B")
    return counted(count), f"{scaled(part['flops'], 'FLOPs')}, {memory} of activations"


def counted(parameters: int) -> str:
    return f"{parameters:,} parameter{'' if parameters == 1 else 's'}"


def _header(node: Mapping[str, Any], outputs: Sequence[str], mark: str) -> list[Shape]:
    kind = f"{node['kind']}{_times(node)}"
    rows = [_shape(node), *numbers(node)]
    if any(output.partition(".")[0] == node["name"] for output in outputs):
        rows.append("output of the model")
    if mark:
        rows.insert(0, mark)
    kind = fitted(kind, 130)
    head: list[Shape] = [
        Text(PAD, 20, fitted(node["name"], WIDTH - 3 * PAD - text_width(kind, TEXT), NAME), "name"),
        Text(WIDTH - PAD, 20, kind, "kind", end=True),
    ]
    styles = ["mark" if mark and row == mark else "fact" for row in rows]
    return head + [Text(PAD, 20 + LINE * at, row, style) for at, (row, style) in enumerate(zip(rows, styles, strict=True), 1)]


def _times(node: Mapping[str, Any]) -> str:
    layers = depth(node.get("layers", ()))
    return f" of {layers:,}" if layers else ""


@dataclass
class _Inside:
    """Draws the layer groups of a stack, each with what it repeats inside."""

    node: str
    marks: Marks
    entries: dict[str, float] = field(default_factory=dict)

    def groups(self, groups: Sequence[Mapping[str, Any]], x: float, y: float, width: float, start: int) -> Iterator[Shape]:
        """The groups from layer `start` on, one below the other."""
        for group in groups:
            nested = group.get("layers")
            inside: list[Shape] = [Text(x + PAD, y + LINE, fitted(_title(group), width - 2 * PAD), "times")]
            inside.append(Text(x + PAD, y + 2 * LINE - 2, counted(group["parameters"]), "fact"))
            low = y + 2 * LINE
            if nested:
                inside += self.groups(nested, x + 6, low + 4, width - 12, start)
            else:
                inside += self._sublayers(group, x + 6, low, width - 12, start)
            low = _bottom(inside)
            yield Rectangle(x, y, width, low + 6 - y, "group")
            yield from inside
            y = low + 14
            start += depth((group,))

    def _sublayers(self, group: Mapping[str, Any], x: float, y: float, width: float, start: int) -> Iterator[Shape]:
        for line in wrapped(group["summary"], width - 8):
            yield Text(x + 4, y + LINE - 4, line, "note")
            y += LINE - 2
        y += 5
        for part in group["sublayers"]:
            mark = fitted(self.marks.of_part(self.node, start, group["repeat"], part["name"]), width - 2 * PAD)
            kind = f"{part['kind']}, " if part["kind"] != part["name"] else ""
            rows = [*([mark] if mark else []), *wrapped(kind + part["summary"], width - 2 * PAD), *numbers(part)]
            height = 26 + (LINE - 2) * len(rows)
            yield Rectangle(x, y, width, height, f"part {FAMILIES.get(part['kind'], 'plain')}{' marked' if mark else ''}")
            yield Text(x + PAD, y + 18, fitted(part["name"], width - 2 * PAD, 13), "part-name")
            for row, line in enumerate(rows, 1):
                yield Text(x + PAD, y + 18 + (LINE - 2) * row, line, "mark" if mark and row == 1 else "note")
            if part["memory"]:
                self.entries.setdefault(part["memory"], y + height / 2)
            y += height + 5
        if group["norms"]:
            yield Text(x + 4, y + LINE - 4, f"norms: {counted(group['norms'])}", "note")


def _title(group: Mapping[str, Any]) -> str:
    """The title of a group, or of a single layer."""
    if "number" in group:
        return f"layer {group['number']}" + (
            f", weights of layer {group['owner']}" if group["owner"] != group["number"] else ""
        )
    times = f"{group['repeat']:,} x " if group["repeat"] > 1 else ""
    kinds = f"{len(group['layers'])} kinds of layer in turn" if "layers" in group else "layer"
    return f"{times}{kinds}{', one set of weights' if group['shared'] else ''}"


def _frame(kind: str, height: float, mark: str) -> Rectangle:
    return Rectangle(0, 0, WIDTH, height, f"frame {FAMILIES.get(kind, 'plain')}{' marked' if mark else ''}")


def _shape(node: Mapping[str, Any]) -> str:
    return fitted(f"({', '.join(map(str, node['shape']))})", WIDTH - 2 * PAD)


def _bottom(shapes: Sequence[Shape]) -> float:
    return max(map(_lowest, shapes))


def _lowest(shape: Shape) -> float:
    return shape.y + (shape.height if isinstance(shape, Rectangle) else 4)


def text_width(text: str, size: float = TEXT) -> float:
    """An estimate of the width of a text. Wide characters are as wide as they are high."""
    return sum(size * (1.05 if unicodedata.east_asian_width(letter) in "WF" else 0.56) for letter in text)


def fitted(text: str, width: float, size: float = TEXT) -> str:
    """The text, cut if it is too wide."""
    if text_width(text[:400], size) <= width and len(text) <= 400:
        return text
    kept = ""
    for letter in text:
        if text_width(kept + letter + "...", size) > width:
            break
        kept += letter
    return kept + "..."


def wrapped(text: str, width: float) -> list[str]:
    """The text in at most `LINES` lines."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        elif len(lines) == LINES:
            return [*lines[:-1], fitted(f"{lines[-1]} ...", width) if lines[-1].endswith("...") else f"{lines[-1]} ..."]
        else:
            lines.append(fitted(word, width))
    return lines


def depth(groups: Sequence[Mapping[str, Any]]) -> int:
    """The number of layers that a token passes through."""
    return sum(group["repeat"] * (depth(group["layers"]) if "layers" in group else 1) for group in groups)


def single_layers(
    groups: Sequence[Mapping[str, Any]], start: int = 0, times: int = 1, copies: int = 1, back: int = 0
) -> Iterator[dict[str, Any]]:
    """Each layer as a group of one, with `number`, and with `owner`, the layer whose weights it uses.

    Args:
        groups: the groups of `layers_data`, whose counts include all repetitions.
        start: the number of the first layer.
        times: how often a token passes through the groups.
        copies: how many sets of weights they have.
        back: how many layers before a layer the owner of its weights is.
    """
    for group in groups:
        repeat, layers = group["repeat"], depth((group,)) // group["repeat"]
        all_times, all_copies = times * repeat, copies * (1 if group["shared"] else repeat)
        for turn in range(repeat):
            number, behind = start + turn * layers, back + turn * layers * group["shared"]
            if "layers" in group:
                yield from single_layers(group["layers"], number, all_times, all_copies, behind)
            else:
                yield _layer(group, all_times, all_copies) | {"number": number, "owner": number - behind}
        start += repeat * layers


def _layer(group: Mapping[str, Any], times: int, copies: int) -> dict[str, Any]:
    parts = [
        {**part, "parameters": part["parameters"] // copies}
        | {name: part[name] // times for name in ("flops", "activation_elements")}
        for part in group["sublayers"]
    ]
    counts = {name: group[name] // copies for name in ("parameters", "norms")}
    return {**group, **counts, "repeat": 1, "shared": False, "sublayers": parts}
