"""A built model in float64 equals its evaluation by formulas, outputs and gradients; what has no formula is unchecked; an error
of any node or sub-layer shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tfkit import build, graph_of, load_spec, parse_spec
from tfkit.plugin import hookimpl
from tfkit_conformance.reference import BUILT_IN, evaluate
from tfkit_conformance.verification.batch import draw, lengths_for
from tfkit_conformance.verification.recording import node_outputs
from tfkit_conformance.verification.verifier import disturbed
from verification.shrunk import OVERRIDES

from .shapes import SHAPES

SPECS = Path(__file__).parents[4] / "specs"


def outputs_of(model, batch):
    with node_outputs(model) as found:
        model(**batch.call(dtype=torch.float64))
    given = {name: tensors[0] for name, tensors in found.items()}
    return {name: each.masked_fill(each == torch.finfo(each.dtype).min, 0.0) for name, each in given.items()}


def prepared(spec, catalogue):
    graph = graph_of(spec)
    model = disturbed(build(spec, catalogue, dtype=torch.float64, seed=0), 0).eval()
    if any(True for _ in model.attention_sites()):
        model.set_backend("eager")
    return graph, model, draw(model, lengths_for(graph, None), 4, 0, "cpu")


def differing(found, real):
    """The nodes whose outputs differ by more than the rounding of float64."""
    return {
        name: (found.outputs[name] - each).abs().max().item()
        for name, each in real.items()
        if name not in found.unchecked and (found.outputs[name] - each).abs().max() > 1e-12 * found.outputs[name].abs().max()
    }


def check(spec, catalogue):
    graph, model, batch = prepared(spec, catalogue)
    real = outputs_of(model, batch)
    given = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    for name in trained:
        given[name].requires_grad_()
    found = evaluate(graph, given, batch, torch.float64)
    assert not found.unchecked
    assert set(found.outputs) == set(real)
    assert not differing(found, real)
    generator = torch.Generator().manual_seed(1)
    weights = {name: torch.randn(real[name].shape, generator=generator, dtype=torch.float64) for name in graph.outputs}
    losses = [sum((values[name] * weight).sum() for name, weight in weights.items()) for values in (found.outputs, real)]
    ours = torch.autograd.grad(losses[0], [given[name] for name in trained], allow_unused=True)
    theirs = torch.autograd.grad(losses[1], list(trained.values()), allow_unused=True)
    largest = max(float(each.abs().max()) for each in ours if each is not None)
    for name, one, other in zip(trained, ours, theirs, strict=True):
        one, other = (torch.zeros_like(trained[name]) if each is None else each for each in (one, other))
        assert (one - other).abs().max() <= 1e-10 * one.abs().max() + 1e-13 * largest, name


@pytest.mark.parametrize("name", sorted(path.stem for path in SPECS.glob("*.yaml")))
def test_a_shipped_model_equals_its_evaluation(name, catalogue):
    check(load_spec(SPECS / f"{name}.yaml", catalogue, OVERRIDES[name]), catalogue)


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_with_other_options_equals_its_evaluation(name, catalogue):
    check(parse_spec(SHAPES[name], catalogue), catalogue)


def test_the_evaluation_in_float32_is_near_that_in_float64(catalogue):
    graph, model, batch = prepared(parse_spec(SHAPES["pool mean"], catalogue), catalogue)
    single, double = (evaluate(graph, model.state_dict(), batch, dtype) for dtype in (torch.float32, torch.float64))
    for name, exact in double.outputs.items():
        assert single.outputs[name].dtype == torch.float32
        assert (single.outputs[name] - exact).abs().max() < 1e-4
    assert not torch.equal(single.outputs["logits"].double(), double.outputs["logits"])


def doubled(options, context, weights, inputs):
    return 2 * inputs["input"].tensor


@pytest.mark.parametrize("formula", ["", f"{__name__}:doubled"])
def test_a_node_of_a_plugin_is_evaluated_by_its_own_formula_or_is_unchecked(formula, catalogue):
    kind = replace(catalogue.find("node", "dense"), name="acme.dense", formula=formula)
    plugin = type("Acme", (), {"tfkit_node_kinds": staticmethod(hookimpl(lambda: [kind], specname="tfkit_node_kinds"))})
    wide = catalogue.with_plugin(plugin(), "acme")
    text = SHAPES["dense"].replace("kind: dense", "kind: acme.dense")
    graph, model, batch = prepared(parse_spec(text, wide), wide)
    found = evaluate(graph, model.state_dict(), batch, torch.float64)
    if formula:
        assert not found.unchecked
        torch.testing.assert_close(found.outputs["between"], 2 * found.outputs["body"], rtol=0, atol=0)
    else:
        assert found.unchecked["between"] == "node acme.dense"
        assert found.unchecked["logits"] == "it reads `between`, which is unchecked"
        assert set(found.outputs) == {"tokens", "body"}


def larger(module, arguments, output):
    if isinstance(output, torch.Tensor):
        return 1.001 * output
    return replace(output, tensor=1.001 * output.tensor)


MODELS = {
    "tokens": "pool mean", "stack": "pool mean", "pool": "pool mean", "classify": "pool mean", "dense": "dense",
    "token_logits": "dense", "layer_mix": "mix true", "span_logits": "span all", "rnn": "gru before_cell",
    "probabilities": "probabilities",
    "patches": "image registers", "features": "audio stride", "convolutions": "audio stride", "similarity": "similarity",
}  # fmt: skip
"""By kind of node, a model with such a node."""


def test_every_builtin_kind_of_node_has_a_model_here(catalogue):
    assert set(MODELS) == {name for name in catalogue.names("node") if "." not in name} == set(BUILT_IN["node"])


@pytest.mark.parametrize("kind", MODELS)
def test_a_node_whose_output_is_a_thousandth_too_large_shows(kind, catalogue):
    graph, model, batch = prepared(parse_spec(SHAPES[MODELS[kind]], catalogue), catalogue)
    name = next(name for name, node in graph.nodes.items() if node.part.kind == kind)
    found = evaluate(graph, model.state_dict(), batch, torch.float64)
    assert not differing(found, outputs_of(model, batch))
    model.nodes[name].register_forward_hook(larger)
    assert name in differing(found, outputs_of(model, batch))


@pytest.mark.parametrize("kind", BUILT_IN["sublayer"])
def test_a_sublayer_whose_output_is_a_thousandth_too_large_shows(kind, catalogue):
    assert set(BUILT_IN["sublayer"]) == {name for name in catalogue.names("sublayer") if "." not in name}
    part = {"average_attention": "{kind: average_attention, d_ff: 20}"}.get(kind, kind)
    recurrent = [f"decoder.sublayers=[{part}, cross_attention, ffn]"] if kind in ("average_attention", "ssru") else []
    graph, model, batch = prepared(parse_spec(SHAPES["cross"], catalogue, recurrent), catalogue)
    found = evaluate(graph, model.state_dict(), batch, torch.float64)
    assert not differing(found, outputs_of(model, batch))
    model.nodes["decoder"].layers[0].branches[kind].register_forward_hook(larger)
    assert "decoder" in differing(found, outputs_of(model, batch))


def halved(module, arguments, output):
    return replace(output, tensor=0.5 * output.tensor)


def test_a_maxout_that_takes_the_smaller_one_and_halved_pools_and_mixes_show(catalogue):
    for shape, node in (("mix true", "mix"), ("pool mean", "p")):
        graph, model, batch = prepared(parse_spec(SHAPES[shape], catalogue), catalogue)
        model.nodes[node].register_forward_hook(halved)
        assert node in differing(evaluate(graph, model.state_dict(), batch, torch.float64), outputs_of(model, batch))
    graph, model, batch = prepared(parse_spec(SHAPES["gru before_cell"], catalogue), catalogue)
    readout = model.nodes["decoder"].readout
    readout.linear.register_forward_hook(lambda module, arguments, output: -output)
    readout.register_forward_hook(lambda module, arguments, output: -output)
    assert "decoder" in differing(evaluate(graph, model.state_dict(), batch, torch.float64), outputs_of(model, batch))
