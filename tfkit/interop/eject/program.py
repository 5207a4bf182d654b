"""Writes the whole file: header, constants, classes, the model, decoding, and `main`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ...errors import Diagnostic, SpecError
from ...errors.control_characters import CONTROL_OR_LINE_END
from ...graph import Graph, graph_of
from ...graph.model_graph import Node, base
from ...slots.node import InputRule
from ...slots.options import Component, SlotField, field_annotations
from ...spec import ModelSpec
from .attention_view import uses_in
from .node_view import Forward, NodeView, RecurrentView, input_shape, variable
from .source_file import Refused, SourceFile, render
from .stack_view import StackView

WIDTH = 120
RETURNED = re.compile(r"^( +)(\w+) = (.*)\n\1return \2$", re.MULTILINE)
"""A value that is returned on the next line."""


def formatted(code: str) -> str:
    """The code with long lines wrapped."""
    code = RETURNED.sub(lambda match: f"{match[1]}return {match[3].partition('  # ')[0]}", code)
    return "\n".join(wrapped for line in code.splitlines() for wrapped in _wrapped(line)) + "\n"


def _wrapped(line: str) -> Iterator[str]:
    """The last bracket of a long line that holds arguments is opened: first on one more line, then one line for each."""
    code, _, comment = line.partition("  # ")
    indent = " " * (len(line) - len(line.lstrip()))
    if len(line) <= WIDTH or line.lstrip().startswith(('"""', "#")):
        yield line
    elif comment:
        yield f"{indent}# {comment}"
        yield from _wrapped(code)
    else:
        start = _opening(code)
        if start < 0:
            yield line
            return
        end = _closing(code, start)
        yield code[: start + 1]
        inside = code[start + 1 : end]
        arguments = [inside] if len(indent) + 4 + len(inside) <= WIDTH else _split(inside)
        for argument in arguments:
            yield from _wrapped(f"{indent}    {argument}")
        yield f"{indent}{code[end:]}"


def _opening(code: str) -> int:
    """The bracket whose inside is the rest of the line, or the signature of a function."""
    if code.lstrip().startswith("def "):
        return code.index("(")
    return next(
        (at for at, letter in enumerate(code) if letter in "([{" and _closing(code, at) >= len(code.rstrip(":,")) - 9), -1
    )


def _closing(code: str, start: int) -> int:
    """The bracket that closes the one at `start`."""
    depth = 0
    for at in range(start, len(code)):
        depth += (code[at] in "([{") - (code[at] in ")]}")
        if depth == 0:
            return at
    return len(code)


def _split(code: str) -> list[str]:
    """The parts between commas, or the clauses of a comprehension, that stand in no bracket."""
    parts, depth, end = [""], 0, ","
    for at, letter in enumerate(code):
        depth += (letter in "([{") - (letter in ")]}")
        clause = depth == 0 and code.startswith(" for ", at)
        if clause or (letter == "," and depth == 0):
            parts.append("")
            end = "" if clause else end
        else:
            parts[-1] += letter
    return [f"{part.strip()}{end}" for part in parts if part.strip()]


UNWRITTEN = {"backend", "init"}
"""Slots that the code does not show: how attention is computed, and how weights are drawn."""


def missing_sources(spec: ModelSpec) -> list[Diagnostic]:
    """The parts without a template, each located in the spec, each once."""
    diagnostics: dict[tuple[str, str], Diagnostic] = {}
    for name, node in spec.nodes.items():
        for path, slot, part in (("", "node", node), *parts_in(node.options, "")):
            if not part.entry.source and not _does_nothing(slot, part):
                message = f"the {slot} `{part.kind}` has no source code to write"
                fix = "choose another part, or give its entry a `source`"
                diagnostics.setdefault((slot, part.kind), spec.diagnostic("TFK150", f"nodes.{name}{path}", message, fix))
    return list(diagnostics.values())


def parts_in(value: Any, path: str) -> Iterator[tuple[str, str, Component]]:
    """The parts that options name, with path and slot."""
    if isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from parts_in(item, f"{path}.{number}")
    elif isinstance(value, Component):
        slot = "sublayer"
        yield path, slot, value
        yield from parts_in(value.options, path)
    elif isinstance(value, BaseModel):
        slots = {name: annotation.slot for name, annotation in field_annotations(type(value), SlotField)}
        for name in type(value).model_fields:
            item = getattr(value, name)
            if name in slots and slots[name] not in UNWRITTEN and isinstance(item, Component):
                yield f"{path}.{name}", slots[name], item
                yield from parts_in(item.options, f"{path}.{name}")
            elif name not in slots and name not in UNWRITTEN:
                yield from parts_in(item, f"{path}.{name}")


def _does_nothing(slot: str, part: Component) -> bool:
    """Whether nothing is written for it: `none`, a dot product."""
    if slot == "position":
        return not part.entry.acts
    if slot == "score":
        return part.entry.build is None
    return slot == "norm" and part.kind == "none"


PROGRAM = Path(__file__).with_name("program.py.jinja")
RUNS = 6
ORDER = {
    "VOCAB_SIZE": "V", "D_MODEL": "M", "NUM_LAYERS": "", "NUM_HEADS": "H", "NUM_KV_HEADS": "G", "HEAD_DIM": "D", "D_FF": "",
    "D_STATE": "N", "MAX_LEN": "", "DROPOUT": "", "PAD_ID": "", "START_ID": "", "END_ID": "",
}  # fmt: skip
"""The constants that come first, with the axis that each is the size of."""


def eject(spec: ModelSpec) -> str:
    """The source code of a model: one file that imports torch and nothing of tfkit.

    Args:
        spec: a resolved spec.

    Raises:
        SpecError: the spec is invalid, or parts have no source code to write; all of them.
    """
    graph = graph_of(spec)
    if missing := missing_sources(spec):
        raise SpecError(missing)
    arguments: dict[str, tuple[str, ...]] = {}
    for _ in range(RUNS):
        file = SourceFile(arguments, {variable(name) for name in graph.nodes})
        text = _program(file, spec, graph)
        differing = file.differing()
        if differing == arguments:
            return text
        arguments = differing
    raise AssertionError("the sizes of classes do not settle")


def _program(file: SourceFile, spec: ModelSpec, graph: Graph) -> str:
    forward = Forward(graph)
    modules: dict[str, str] = {}
    uses = uses_in(graph)
    for node in graph.nodes.values():
        file.prefix = node.name
        try:
            module = _node(file, forward, node, uses)
        except Refused as reason:
            fix = "change the option, or write this part by hand"
            message = f"no source code is written for {reason}"
            raise SpecError(spec.diagnostic("TFK150", f"nodes.{node.name}", message, fix)) from None
        if module:
            modules[node.name] = module
    file.prefix = "model"
    outputs = [
        f"torch.stack({forward.layers[base(ref)]})" if ref != base(ref) else forward.values[ref] for ref in graph.outputs
    ]
    marks = []
    for name, mark in forward.visible.items():
        if any(mark in line for line in [*forward.lines, *outputs]):
            rule = forward.rules[name]
            if not rule.marks_padding:
                marks.append(
                    f"{mark} = torch.ones_like({variable(name)}, dtype=torch.bool)  # the id of padding is also the end"
                )
                continue
            marks.append(f"{mark} = {variable(name)} != {file.const('PAD_ID', rule.pad_id)}  # (B, L)")
            if rule.start_id == rule.pad_id:
                marks.append(f"{mark}[:, 0] = True  # the start token has the id of padding")
    decoded = _decoded(graph, forward)
    rule = forward.rules[decoded[0]] if decoded else None
    names = {"start": rule.start_id, "end": rule.end_id} if rule else {}
    ids = {key: file.const(f"{key.upper()}_ID", value) for key, value in names.items() if value is not None}
    template: Any = render(
        PROGRAM,
        spec=spec,
        intro=_intro(spec),
        title=_title(graph),
        modules=modules,
        forward=forward,
        lines=[*marks, *forward.lines],
        outputs=outputs,
        inputs=[(variable(name), rule, input_shape(rule), isinstance(rule, InputRule)) for name, rule in forward.rules.items()],
        decoded=variable(decoded[0]) if decoded else "",
        logits=graph.outputs.index(decoded[1]) if decoded else 0,
        start=ids.get("start", ""),
        end=ids.get("end", ""),
    )
    body = template.body(list(file.classes.values()))
    head = template.head([_constant(name, *item) for name, item in in_order(file.constants)], "math." in body, "F." in body)
    return formatted(head + body)


def in_order(constants: dict[str, tuple[Any, str]]) -> list[tuple[str, tuple[Any, str]]]:
    """The constants, sizes first; those of one kind stay together."""

    def rank(item: tuple[str, Any]) -> int:
        return next((at for at, name in enumerate(ORDER) if item[0] == name or item[0].endswith(f"_{name}")), len(ORDER))

    ordered = []
    for name, (value, comment) in sorted(constants.items(), key=rank):
        axis = next((axis for known, axis in ORDER.items() if name == known or name.endswith(f"_{known}")), "")
        ordered.append((name, (value, comment or axis)))
    return ordered


def _constant(name: str, value: Any, comment: str) -> str:
    return f"{name} = {value!r}" + (f"  # {comment}" if comment else "")


def _intro(spec: ModelSpec) -> list[str]:
    """The lines about the model in the first docstring, which no text of the spec can end."""
    name, about, source = (CONTROL_OR_LINE_END.sub(" ", text) for text in (spec.name, spec.description, spec.reference))
    lines = textwrap.wrap(f"{name}: {about}" if about else f"{name}.", WIDTH - 4) + [source] * bool(source)
    return [line.replace("\\", r"\\").replace('"""', r"\"\"\"") for line in lines]


def _title(graph: Graph) -> str:
    return "Transformer" if any(node.part.kind == "stack" for node in graph.nodes.values()) else "Model"


def _node(file: SourceFile, forward: Forward, node: Node, uses: Any) -> str:
    """Write a node; returns the constructor of its module, empty if it has none."""
    view = NodeView(forward, node)
    values: dict[str, Any] = {"node": view, "c": node.context}
    keeps = {"layers": forward.keeps_layers(node.name)}
    if node.part.kind == "stack":
        values["stack"] = StackView(file, node.options, node.context, uses, keeps["layers"])
    if node.part.kind == "rnn":
        keeps["states"] = any(
            "memory" in other.edges.reads and base(other.edges.reads["memory"]) == node.name
            and getattr(getattr(other.options, "initial_state", None), "take", "") == "states"
            for other in forward.graph.nodes.values()
        )  # fmt: skip
        values["recurrent"] = RecurrentView(file, node.options, node.context, keeps["layers"], keeps["states"])
    part: Any = file.template(node.part, **values)
    module = getattr(part, "module", True)
    name, new = ("", "") if getattr(part, "plain", False) or (node.part.kind == "pool" and not module) else file.define(part)
    called = str(part.call(f'self.nodes["{node.name}"]' if module else name)).strip()
    is_input = node.kind.input_rule is not None
    if is_input and forward.uses(node.name) == 1 and node.name not in forward.graph.outputs:
        forward.values[node.name] = called
        return new if module else ""
    assigned = f"{variable(node.name)}_embedded" if is_input and module else variable(node.name)
    forward.values[node.name] = assigned
    if called != assigned:
        variables = ["_" if any(keeps.values()) and not _reads_plain(forward, node.name) else assigned]
        for kept, by_node in (("layers", forward.layers), ("states", forward.states)):
            if keeps.get(kept):
                by_node[node.name] = f"{assigned}_{kept}"
                variables.append(by_node[node.name])
        forward.lines.append(f"{', '.join(variables)} = {called}")
    return new if module else ""


def _reads_plain(forward: Forward, name: str) -> bool:
    refs = [ref for node in forward.graph.nodes.values() for ref in (*node.edges.reads.values(), *node.edges.memories)]
    return name in (*refs, *forward.graph.outputs)


def _decoded(graph: Graph, forward: Forward) -> tuple[str, str] | None:
    """The input that is decoded and the output with its logits, if the model has them."""
    for output in graph.outputs:
        name = base(output)
        if graph.nodes[name].part.kind != "token_logits":
            continue
        while (node := graph.nodes[name]).kind.stepwise(node.options) and "input" in node.edges.reads:
            name = base(node.edges.reads["input"])
        rule = forward.rules.get(name)
        if isinstance(rule, InputRule) and rule.vocab_size == graph.nodes[base(output)].signal.width:
            return name, output
    return None
