"""What takes minutes to make is made only with `--large`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..errors import Diagnostic, InputError

if TYPE_CHECKING:
    from ..graph import Graph

MAX_LAYERS = 1_000
"""Nodes, and layers of stacks, that are made without `--large`. The deepest published Transformer has 1,000 layers
(https://arxiv.org/abs/2203.00555); `tfkit build` takes 5 ms for a layer, whatever its width."""

large_option = click.option("--large", is_flag=True, help=f"Make more than {MAX_LAYERS:,} layers, which takes minutes.")


def check_layers(graph: Graph, large: bool) -> None:
    """Raises InputError for a model of very many layers, unless the user asked for it."""
    layers = graph.layers() + len(graph.nodes)
    if layers > MAX_LAYERS and not large:
        count = graph.parameters() + graph.parameters(trainable=False)
        message = f"`{graph.name}` has {layers:,} layers and nodes with {count:,} parameters"
        fix = f"more than {MAX_LAYERS:,} take minutes: pass --large to make them, or use fewer"
        raise InputError(Diagnostic("TFK045", message, fix))
