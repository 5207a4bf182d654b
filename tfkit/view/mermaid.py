"""The model graph as a Mermaid flowchart: memories are labelled edges, shared tables dotted ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def mermaid(data: Mapping[str, Any]) -> str:
    """A flowchart of `model_data`. https://mermaid.js.org/syntax/flowchart.html"""
    numbers = {node["name"]: f"n{index}" for index, node in enumerate(data["nodes"])}
    returned = {output.split(".")[0] for output in data["outputs"]}
    lines = ["flowchart TD"]
    for node in data["nodes"]:
        label = "<br/>".join([_safe(node["name"]), _safe(_kind(node)), f"({', '.join(map(_safe, node['shape']))})"])
        shape = f'(["{label}"])' if node["name"] in returned else f'["{label}"]'
        lines.append(f"    {numbers[node['name']]}{shape}")
    for node in data["nodes"]:
        for field, ref in node["reads"].items():
            source = numbers[ref.split(".")[0]]
            port = ref.partition(".")[2]
            role = field.split(" ")[0]
            label = ", ".join([*([] if role == "input" else [role]), *([port] if port else [])])
            lines.append(f"    {source} -->{f'|{_safe(label)}|' if label else ''} {numbers[node['name']]}")
        if node["shares"]:
            lines.append(f"    {numbers[node['shares']]} -.->|table| {numbers[node['name']]}")
    return "\n".join(lines) + "\n"


def _kind(node: Mapping[str, Any]) -> str:
    depth = _depth(node.get("layers", []))
    return f"{node['kind']} of {depth:,}" if depth else str(node["kind"])


def _depth(groups: list[dict[str, Any]]) -> int:
    return sum(group["repeat"] * (_depth(group["layers"]) if "layers" in group else 1) for group in groups)


def _safe(text: str | int) -> str:
    """Text in which characters with a meaning in Mermaid are entities."""
    return "".join(letter if letter.isalnum() or letter in " _.,-" else f"#{ord(letter)};" for letter in str(text))
