"""Checks of the parts of a model, each on its inputs in a run of the model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tfkit import Graph, Model
from tfkit.plugin import Component

from ..finding import Violation
from .expected import expected_layers, expected_sites, stacks
from .recording import Call, Recording
from .requested import request
from .row import PartCheck
from .tokenwise import feed_forward, norm, projections, tokenwise_nodes
from .wiring import layer_wiring, stack_wiring


def local_checks(model: Model, graph: Graph, recording: Recording) -> Iterator[PartCheck]:
    """The checks that do not depend on backends; they are made once per run."""
    for node in stacks(graph):
        yield PartCheck("wiring of the stack", "", node.name, partial(stack_wiring, graph, recording, node.name))
    sites = expected_sites(graph)
    for expected in expected_layers(graph):
        where = f"{expected.stack}.{expected.index}"
        yield PartCheck("wiring of the layer", "", where, partial(layer_wiring, graph, recording, expected))
        for name in expected.sublayers:
            full = f"{where}.{name}"
            if full in sites:
                yield PartCheck("request", "A4", full, partial(request, recording, sites[full]))
                yield PartCheck("projections", "", full, partial(projections, recording, sites[full]))
            else:
                yield PartCheck("feed-forward", "R37", full, partial(feed_forward, recording, expected, name))
        applied = recording.layers.get((expected.stack, expected.index))
        for part, calls in applied.parts.items() if applied else ():
            if part.startswith("norms.") and expected.layer.norm.kind != "none":
                yield _norms(recording, f"{where}.{part.removeprefix('norms.')}", expected.layer.norm, calls)
    for name, call in recording.final_norms.items():
        if graph.nodes[name].options.final_norm.kind != "none":
            yield _norms(recording, f"{name}.final_norm", graph.nodes[name].options.final_norm, [call])
    for name, node in graph.nodes.items():
        for below in ("embedding_norm", "output_norm"):
            asked = getattr(node.options, below, None)
            if isinstance(asked, Component) and asked.kind != "none":
                yield _norms(recording, f"{name}.{below}", asked, recording.inner.get((name, below), []))
    for name, check in tokenwise_nodes(graph).items():
        node = graph.nodes[name]
        yield PartCheck(node.part.kind, "", name, partial(check, model, recording, node))


def _norms(recording: Recording, where: str, part: Component, calls: list[Call]) -> PartCheck:
    def check() -> float:
        if not calls:
            raise Violation("norm", f"the norm {where} was not applied")
        return max(norm(call, part, f"{where}: {recording.weight_of(call.module)}") for call in calls)

    return PartCheck("norm", "R36", where, check)
