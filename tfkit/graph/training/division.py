"""Which weights of a model are divided among ranks, and how: tensor parallelism by the roles of the parameters.

columns      query, key, value and gate of attention, ffn_in and ffn_gate: a rank has some heads, or some hidden features
rows         attention_output and ffn_out: each rank multiplies its part, and the sum over the ranks is the output
vocabulary   embeddings and logits: a rank has some rows of the table

Shoeybi et al. 2019, section 3 (https://arxiv.org/abs/1909.08053). Everything else is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...slots.layer import leaves
from ...slots.sublayer import SublayerContext
from ..model_graph import Graph, Node, layers_of

COLUMNS = frozenset({"query", "key", "value", "attention_gate", "ffn_in", "ffn_gate"})
ROWS = frozenset({"attention_output", "ffn_out"})
VOCABULARY = frozenset({"embedding", "logits"})


@dataclass
class Division:
    """The modules of a model that are divided, by their path below the model.

    Args:
        columns: linear maps whose output features are divided.
        rows: linear maps whose input features are divided.
        vocabulary: tables and maps whose rows are divided.
        heads: attention modules, each rank of which has some heads.
        whole: what is not divided although it could be in principle, with the reason.
    """

    columns: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    vocabulary: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    whole: dict[str, str] = field(default_factory=dict)


def divide(graph: Graph, ranks: int) -> Division:
    """Divide the weights of a model among ranks.

    Args:
        graph: the resolved model.
        ranks: number of ranks.

    Returns:
        The modules of the model by how they are divided.
    """
    division = Division()
    for name, node in graph.nodes.items():
        if layers_of(node.options):
            for path, reason, names in _sublayers(node, ranks):
                if reason:
                    division.whole[f"nodes.{name}.{path}"] = reason
                    continue
                for part, role in names:
                    into = division.columns if role in COLUMNS else division.rows
                    into.append(f"nodes.{name}.{path}.{part}")
                if any(role == "value" for _, role in names):
                    division.heads.append(f"nodes.{name}.{path}")
            continue
        for parameter in node.parameters():
            if parameter.role in VOCABULARY:
                path = f"nodes.{name}.{parameter.name.removesuffix('.weight')}"
                if parameter.shape[0] % ranks:
                    division.whole[path] = f"{parameter.shape[0]} rows are not divisible by {ranks}"
                else:
                    division.vocabulary.append(path)
    return division


def _sublayers(node: Node, ranks: int) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Every sub-layer of a stack: its path, the reason why it is not divided, and its linear maps with their roles."""
    width = node.context.signals["input"].width
    for leaf in leaves(layers_of(node.options)):
        for sublayer in leaf.layer.sublayers or ():
            entry, options = sublayer.entry, sublayer.options
            context = SublayerContext(width, None, False, leaf.layer.position)
            reason = f"the kind {entry.name} does not say how" if entry.undivided is None else ""
            reason = reason or entry.undivided(options, context, ranks)
            names = [
                (parameter.name.removesuffix(".weight"), parameter.role)
                for parameter in entry.parameters(options, context)
                if parameter.role in COLUMNS | ROWS
            ]
            for number in leaf.numbers():
                yield f"layers.{number}.branches.{options.name}", reason, names
