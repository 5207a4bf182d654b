"""Writes the whole file: header, constants, classes, the model, decoding, and `main`."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from ...errors import SpecError
from ...errors.control_characters import CONTROL_OR_LINE_END
from ...graph import Graph, graph_of
from ...graph.model_graph import Node, base
from ...slots.node import InputRule
from ...spec import ModelSpec
from .attention_view import uses_in
from .formatting import WIDTH, formatted
from .node_view import Forward, NodeView, input_shape, variable
from .parts import missing_sources
from .recurrent_view import RecurrentView
from .source_file import Refused, SourceFile, render
from .stack_view import StackView

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

    Returns:
        The text of the file.

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
        found = file.differing()
        if found == arguments:
            return text
        arguments = found
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
    outputs = [forward.layers[base(ref)] if ref != base(ref) else forward.values[ref] for ref in graph.outputs]
    marks = []
    for name, mark in forward.visible.items():
        if any(mark in line for line in [*forward.lines, *outputs]):
            rule = forward.rules[name]
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

    found = []
    for name, (value, comment) in sorted(constants.items(), key=rank):
        axis = next((axis for known, axis in ORDER.items() if name == known or name.endswith(f"_{known}")), "")
        found.append((name, (value, comment or axis)))
    return found


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
    keeps = forward.keeps_layers(node.name)
    if node.part.kind == "stack":
        values["stack"] = StackView(file, node.options, node.context, uses, keeps)
    if node.part.kind == "rnn":
        keeps = any(
            "memory" in other.edges.reads and base(other.edges.reads["memory"]) == node.name
            and getattr(getattr(other.options, "initial_state", None), "take", "") == "states"
            for other in forward.graph.nodes.values()
        )  # fmt: skip
        values["recurrent"] = RecurrentView(file, node.options, node.context, keeps)
    part: Any = file.template(node.part, **values)
    module = getattr(part, "module", True)
    name, new = ("", "") if getattr(part, "plain", False) or (node.part.kind == "pool" and not module) else file.define(part)
    called = str(part.call(f'self.nodes["{node.name}"]' if module else name)).strip()
    is_input = node.kind.input_rule is not None
    if is_input and forward.uses(node.name) == 1 and node.name not in forward.graph.outputs:
        forward.values[node.name] = called
        return new if module else ""
    own = f"{variable(node.name)}_embedded" if is_input and module else variable(node.name)
    forward.values[node.name] = own
    if called != own:
        if keeps:
            plain = "_" if not _reads_plain(forward, node.name) else own
            forward.layers[node.name] = f"{own}_{'layers' if node.part.kind == 'stack' else 'states'}"
            forward.lines.append(f"{plain}, {forward.layers[node.name]} = {called}")
        else:
            forward.lines.append(f"{own} = {called}")
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
