"""The batch for the costs of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..graph import Batch, Graph, max_input_lengths
from .usage import nearest, usage_error

USUAL = 32
"""Default positions per row."""


def batch_of(graph: Graph, size: int, lengths: Mapping[str, int] | None) -> Batch:
    """A batch with a length for every input whose length varies. Raises UsageError for an unknown input, a missing one, or one
    too long."""
    limits = max_input_lengths(graph)
    if lengths is None:
        return Batch(size, {name: min(USUAL, limit or USUAL) for name, limit in limits.items()})
    for name, length in lengths.items():
        if name in graph.nodes and graph.nodes[name].kind.input_rule is not None and name not in limits:
            positions = graph.nodes[name].signal.length
            raise usage_error(f"argument --lengths: `{name}` always has {positions} positions", "leave it out")
        if name not in limits:
            fix = nearest(name, limits) or f"inputs: {', '.join(limits)}"
            raise usage_error(f"argument --lengths: the model has no input `{name}`", fix)
        limit = limits[name]
        if limit is not None and length > limit:
            raise usage_error(f"argument --lengths: {name}={length} is longer than its position table, {limit}")
    missing = [name for name in limits if name not in lengths]
    if missing:
        raise usage_error(f"argument --lengths: it has no length for {', '.join(missing)}", f"inputs: {', '.join(limits)}")
    return Batch(size, lengths)


def check_lengths(graph: Graph, lengths: Iterable[int]) -> None:
    """Raises UsageError for a length that exceeds the position tables of all inputs."""
    limits = list(max_input_lengths(graph).values())
    for length in lengths:
        if limits and all(limit is not None and length > limit for limit in limits):
            tables = " or ".join(sorted({str(limit) for limit in limits}))
            raise usage_error(f"argument --lengths: {length} is longer than the position table, {tables}")
