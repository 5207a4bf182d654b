"""Drawings in notebooks: what `_repr_html_` of a graph and of a model returns."""

from __future__ import annotations

import hashlib

from ...graph import Batch, Graph, graph_of, max_input_lengths
from ...spec import ModelSpec
from ..model_data import model_data
from .page import model_drawing
from .svg import svg

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
