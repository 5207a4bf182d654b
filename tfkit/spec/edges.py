"""Checks of the written edges: every reference names an existing node, and there is no cycle.

They run on the located tree, so that a misspelt edge is found even in a node with other errors. They run before any code that
follows edges, which would not end in a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..slots.options import NodeRef, field_annotations
from .grammar import Grammar
from .hints import did_you_mean
from .located import Diagnostics, Located, short

Edge = tuple[str, Located, str]
"""(field, the written reference, its role)"""


def check_edges(
    nodes: Mapping[str, Located],
    resolved: Mapping[str, Located],
    outputs: Located | None,
    grammar: Grammar,
    diagnostics: Diagnostics,
) -> None:
    """Adds an error for each reference to an unknown node and for each cycle. `resolved` has the nodes with defaults."""
    targets: dict[str, list[tuple[str, Located]]] = {}
    for name, node in nodes.items():
        targets[name] = []
        for _, reference, role in edges_of(resolved.get(name, node), grammar):
            target = _target(reference, role, nodes, grammar, diagnostics)
            if target is not None:
                targets[name].append((target, reference))
    for reference in outputs.items if outputs else []:
        if isinstance(reference.value, str):
            _target(reference, "output", nodes, grammar, diagnostics)
    for cycle, reference in cycles(targets):
        message = f"the edges form a cycle: {' -> '.join(_abbreviated(cycle))}"
        diagnostics.add("TFK015", reference.location, reference.path, message, "a node may not depend on itself")


def edges_of(node: Located, grammar: Grammar) -> Iterator[Edge]:
    """Every reference of a node and of its sub-layers."""
    kind = grammar.node_kinds.get(node.kind or "")
    for field, role in grammar.references(kind):
        child = node.get(field)
        for reference in [] if child is None else child.items or [child]:
            if isinstance(reference.value, str):
                yield field, reference, role
    layers = grammar.layers_field(kind)
    if layers and (pattern := node.get(layers)):
        yield from _inside(pattern, grammar)


def _inside(pattern: Located, grammar: Grammar) -> Iterator[Edge]:
    for layer in pattern.items:
        inner, sublayers = layer.get("layers"), layer.get("sublayers")
        if inner is not None:
            yield from _inside(inner, grammar)
        for part in sublayers.items if sublayers else []:
            entry = grammar.find("sublayer", part.kind)
            for field, annotation in field_annotations(entry.options, NodeRef) if entry else []:
                reference = part.get(field)
                if reference is not None and isinstance(reference.value, str):
                    yield field, reference, annotation.role


def _target(
    reference: Located, role: str, nodes: Mapping[str, Located], grammar: Grammar, diagnostics: Diagnostics
) -> str | None:
    """The node that a reference names. If there is none, adds an error and returns None."""
    name, dot, port = str(reference.value).partition(".")
    if name not in nodes:
        fix = did_you_mean(name, nodes, "nodes")
        diagnostics.add("TFK014", reference.location, reference.path, f"there is no node `{short(name)}`", fix)
        return None
    kind = grammar.node_kinds.get(nodes[name].kind or "")
    if not dot or kind is None:
        return name
    if role in ("owner", "tokens"):
        message = f"`{short(reference.value)}` is an output of a node, a node is expected"
        diagnostics.add("TFK014", reference.location, reference.path, message, f"write `{name}`")
    elif port not in kind.ports:
        ports = [f"{name}.{known}" for known in kind.ports]
        fix = did_you_mean(f"{name}.{port}", ports, f"outputs of `{name}`") or f"write `{name}`"
        diagnostics.add("TFK014", reference.location, reference.path, f"node `{name}` has no output `{short(port)}`", fix)
    return name


def cycles(targets: Mapping[str, list[tuple[str, Located]]]) -> Iterator[tuple[list[str], Located]]:
    """Each cycle once: its nodes in order, the first one repeated at the end, and the closing reference. Not recursive."""
    finished: set[str] = set()
    for start in targets:
        if start in finished:
            continue
        path, pending, position = [start], [iter(targets[start])], {start: 0}  # depth-first; position of each node on the path
        while path:
            step = next(pending[-1], None)
            if step is None:
                finished.add(path[-1])
                del position[path.pop()]
                pending.pop()
            elif step[0] in position:
                yield [*path[position[step[0]] :], step[0]], step[1]
            elif step[0] not in finished:
                position[step[0]] = len(path)
                path.append(step[0])
                pending.append(iter(targets[step[0]]))


def _abbreviated(names: list[str]) -> list[str]:
    return names if len(names) <= 12 else [*names[:6], "...", *names[-5:]]
