"""The graph: order, edges, symbolic shapes, and counts that are those of the built modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tfkit
from tfkit.builtin.node import stack_entry
from tfkit.graph.model_graph import base
from tfkit.plugin.model_parts import PlacementContext

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))
NODES = """nodes:
  logits:  {kind: token_logits, input: wide, vocab_size: 40}
  wide:    {kind: dense, input: decoder, d_model: 30}
  decoder: {kind: stack, input: target, memory: mixed, causal: true, layers: [{repeat: 2, shared: true}, {}]}
  mixed:   {kind: layer_mix, input: encoder.layers}
  encoder: {kind: stack, input: source, num_layers: 2}
  target:  {kind: tokens, share: source}
  source:  {kind: tokens}
  mean:    {kind: pool, input: encoder, take: mean}
  label:   {kind: classify, input: mean, classes: 3}
outputs: [logits, label]
"""


def test_nodes_come_after_their_inputs(graph_from: Callable[..., tfkit.Graph]) -> None:
    graph = graph_from(NODES)
    before: set[str] = set()
    for name, node in graph.nodes.items():
        assert {base(ref) for ref in node.edges.all()} <= before
        before.add(name)
    assert len(before) == 9
    assert {node.name for node in graph.inputs()} == {"source", "target"}


def test_shapes_are_symbols(graph_from: Callable[..., tfkit.Graph]) -> None:
    graph = graph_from(NODES)
    shapes = {name: node.signal.axes for name, node in graph.nodes.items()}
    assert shapes == {
        "source": ("B", "L_source", 24),
        "target": ("B", "L_target", 24),
        "encoder": ("B", "L_source", 24),
        "mixed": ("B", "L_source", 24),
        "decoder": ("B", "L_target", 24),
        "wide": ("B", "L_target", 30),
        "logits": ("B", "L_target", 40),
        "mean": ("B", 24),
        "label": ("B", 3),
    }
    assert graph.nodes["encoder"].signal.depth == 2
    assert graph.nodes["decoder"].signal.depth == 3


def test_shapes_are_those_of_the_outputs(
    graph_from: Callable[..., tfkit.Graph], spec_from: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue
) -> None:
    spec = spec_from(NODES)
    outputs = tfkit.build(spec, catalogue)(source=torch.ones(2, 5).long(), target=torch.ones(2, 7).long())
    sizes = {"B": 2, "L_source": 5, "L_target": 7}
    for name, output in outputs.items():
        assert tuple(output.shape) == tuple(sizes.get(axis, axis) for axis in graph_from(NODES).nodes[name].signal.axes)


def test_sites_are_named_by_application(graph_from: Callable[..., tfkit.Graph]) -> None:
    names = [name for name, _ in graph_from(NODES).sites()]
    kinds = ("self_attention", "cross_attention")
    assert names == [f"encoder.{n}.self_attention" for n in range(2)] + [
        f"decoder.{n}.{kind}" for n in range(3) for kind in kinds
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_counts_names_shapes_and_sites_are_those_of_the_modules(path: Path, catalogue: tfkit.Catalogue) -> None:
    spec = tfkit.load_spec(path, catalogue)
    graph = tfkit.graph_of(spec)
    model = tfkit.build(spec, catalogue, device="meta")
    listed = {f"nodes.{node.name}.{p.name}": (p.shape, p.trainable) for node in graph.nodes.values() for p in node.parameters()}
    tensors = (*model.named_parameters(), *model.named_buffers())
    assert listed == {name: (tuple(tensor.shape), tensor.requires_grad) for name, tensor in tensors}
    assert graph.parameters() == model.parameter_count() == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert graph.parameters(trainable=False) == model.parameter_count(trainable=False)
    assert [name for name, _ in graph.sites()] == list(model.sites)
    for node in graph.nodes.values():
        assert node.count() == sum(p.numel() for p in model.nodes[node.name].parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("layers", "modules", "passes"),
    [
        ("[{repeat: 3}]", 3, 3),
        ("[{repeat: 3, shared: true}]", 1, 3),
        ("[{repeat: 2, layers: [{}, {ffn: {d_ff: 8}}]}]", 4, 4),
        ("[{repeat: 2, shared: true, layers: [{repeat: 2}, {repeat: 3, shared: true, ffn: {d_ff: 8}}]}, {}]", 4, 11),
    ],
)
def test_patterns_of_layers(
    layers: str, modules: int, passes: int, spec_from: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue
) -> None:
    text = f"nodes: {{t: {{kind: tokens}}, body: {{kind: stack, input: t, layers: {layers}}}}}\noutputs: [body]\n"
    spec = spec_from(text)
    graph, model = tfkit.graph_of(spec), tfkit.build(spec, catalogue)
    assert len(model.nodes["body"].layers) == modules
    assert len(model.nodes["body"].order) == graph.nodes["body"].signal.depth == passes
    assert graph.parameters() == model.parameter_count()
    model(t=torch.ones(1, 3).long())


def test_layers_whose_heads_differ_in_width_alone_share_a_table_of_t5(catalogue: tfkit.Catalogue) -> None:
    text = (
        "{tfkit: 1, name: a, defaults: {d_model: 8, norm: layer_norm, placement: pre, position: relative_t5, "
        "attention: {num_heads: 2}, ffn: {d_ff: 8, activation: relu}}, nodes: {ids: {kind: tokens, vocab_size: 9}, "
        "body: {kind: stack, input: ids, causal: true, layers: [{}, {self_attention: {head_dim: 6}}]}}, outputs: [body]}"
    )
    body = tfkit.graph_of(tfkit.parse_spec(text, catalogue)).nodes["body"]
    assert [p.name for p in body.parameters() if p.role == "relative_table"] == ["positions.0.table"]
    wider = text.replace("head_dim: 6", "num_heads: 4")
    body = tfkit.graph_of(tfkit.parse_spec(wider, catalogue)).nodes["body"]
    assert len([p.name for p in body.parameters() if p.role == "relative_table"]) == 2


def test_a_stack_is_found_through_nodes_that_read_each_other_twice(graph_from: Callable[..., tfkit.Graph]) -> None:
    """A search of every path would make 2^60 steps."""
    lines = ["encoder: {kind: stack, input: source, num_layers: 3}", "source: {kind: tokens}", "target: {kind: tokens}"]
    last = "encoder"
    for number in range(60):
        own = "cell: gru, d_state: 24, cross_attention: {attend: after_cell, score: dot}, readout: {kind: tanh, d_model: 24}"
        lines.append(f"r{number}: {{kind: rnn, input: {last}, memory: {last}, {own}}}")
        last = f"r{number}"
    lines.append(f"decoder: {{kind: stack, input: target, memory: {last}, num_layers: 5, causal: true}}")
    graph = graph_from("\n  ".join(["nodes:", *lines]) + "\noutputs: [decoder]\n")
    stack = {name: graph.nodes[name].context.stack for name in ("encoder", "decoder")}
    assert stack == {"encoder": PlacementContext("encoder", 3, 0), "decoder": PlacementContext("decoder", 5, 3)}


def test_the_site_of_equal_layers_is_described_once(
    graph_from: Callable[..., tfkit.Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_from("nodes:\n  t: {kind: tokens}\n  body: {kind: stack, input: t, num_layers: 1000}\noutputs: [body]\n")
    described = []
    own = stack_entry.sublayer_context
    monkeypatch.setattr(stack_entry, "sublayer_context", lambda *given: described.append(given) or own(*given))
    sites = list(graph.sites())
    assert [name for name, _ in sites[::999]] == ["body.0.self_attention", "body.999.self_attention"]
    assert len(described) == 2  # attention and feed-forward
