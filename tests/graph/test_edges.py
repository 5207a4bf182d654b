"""Edges as other plugins may draw them: memories with ports, and node kinds whose options only look like a stack's."""

from __future__ import annotations

from typing import Annotated

import pytest

import tfkit
from tfkit.plugin import NodeKind, Options, hookimpl
from tfkit.plugin.model_parts import NodeRef

SPEC = """
tfkit: 1
name: small
defaults: {{d_model: 8, vocab_size: 9, placement: pre, norm: layer_norm, attention: {{num_heads: 2}},
           ffn: {{d_ff: 8, activation: relu}}}}
nodes:
  source: {{kind: tokens}}
  target: {{kind: tokens}}
  encoder: {{kind: stack, input: source, num_layers: 2}}
  {extra}
  decoder: {{kind: stack, input: target, causal: true,
            layers: [{{sublayers: [{{kind: cross_attention, memory: {memory}}}, ffn]}}]}}
outputs: [decoder]
"""


class RecurrentOptions(Options):
    """A number of layers, which is no layer pattern."""

    input: Annotated[str, NodeRef("input")]
    layers: int = 2


class Recurrent:
    """A plugin with one node kind."""

    @hookimpl
    def tfkit_node_kinds(self) -> list[NodeKind]:
        kind = NodeKind(
            name="acme.rnn", summary="passes its input on", options=RecurrentOptions, inherits=frozenset(),
            output=lambda options, context: context.signals["input"], build="acme:build",
        )  # fmt: skip
        return [kind]


@pytest.fixture
def catalogue() -> tfkit.Catalogue:
    return tfkit.load_catalogue().with_plugin(Recurrent(), "acme")


def test_a_sublayer_reads_one_output_not_the_layers_of_a_stack(catalogue: tfkit.Catalogue) -> None:
    spec = tfkit.parse_spec(SPEC.format(extra="", memory="encoder.layers"), catalogue)
    with pytest.raises(tfkit.SpecError) as refused:
        tfkit.graph_of(spec)
    (diagnostic,) = refused.value.diagnostics
    assert (diagnostic.code, diagnostic.path) == ("TFK042", "nodes.decoder.layers.0.sublayers.0.memory")
    assert "`encoder.layers` is the 2 layers of `encoder`" in diagnostic.message


def test_an_option_named_layers_makes_no_stack(catalogue: tfkit.Catalogue) -> None:
    text = SPEC.format(extra="wave: {kind: acme.rnn, input: encoder, layers: 3}", memory="wave")
    graph = tfkit.graph_of(tfkit.parse_spec(text, catalogue))
    assert graph.nodes["wave"].context.stack is None
    assert graph.nodes["encoder"].context.stack.role == "encoder"
