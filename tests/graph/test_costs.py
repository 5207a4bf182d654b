"""What a forward pass costs: FLOPs are those that torch counts, node by node; kept activations are near what autograd keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import tfkit
from tfkit.graph import Batch, node_costs, total_elements, total_flops
from tfkit.inspection import max_input_lengths
from tfkit.nn import heads, recurrent
from tfkit.plugin.model_parts import AnyInputRule, FeatureRule, ImageRule
from tiers import EVERY_CASE

SPECS = Path(__file__).parents[2] / "specs"
GROUPS = """nodes:
  tokens: {kind: tokens}
  body:
    kind: stack
    input: tokens
    causal: true
    layers: [{repeat: 2, attention: {num_kv_heads: 2, score: general}}, {attention: {window: 3}}]
  logits: {kind: token_logits, input: body, share: tokens}
outputs: [logits]
"""


def flops_of(spec: tfkit.ModelSpec, catalogue: tfkit.Catalogue, lengths: dict[str, int]) -> dict[str, int]:
    """By node, as torch counts them, without computing anything: fake tensors have shapes and no numbers."""
    built = tfkit.build(spec, catalogue, device="meta", backend="eager").eval()
    built.retarget(torch.device("cpu"), torch.float32)
    with FakeTensorMode(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        tensors = (*built.named_parameters(), *built.named_buffers())
        weights = {name: torch.empty(tensor.shape) for name, tensor in tensors}
        given = {name: input_of(rule, 2, lengths.get(name, 0)) for name, rule in built.plan.inputs.items()}
        torch.func.functional_call(built, weights, (), given)
    found = {
        name.removeprefix("Model.nodes."): sum(ops.values())
        for name, ops in counter.flop_counts.items()
        if name.startswith("Model.nodes.") and name.count(".") == 2
    }
    assert sum(found.values()) == counter.get_total_flops()
    return found


def input_of(rule: AnyInputRule, size: int, length: int) -> Tensor:
    """Token ids, frames or images."""
    if isinstance(rule, ImageRule):
        return torch.zeros(size, rule.channels, rule.size, rule.size)
    if isinstance(rule, FeatureRule):
        return torch.zeros(size, length, rule.size)
    return torch.randint(3, 100, (size, length)) if rule.vocab_size >= 100 else torch.zeros(size, length, dtype=torch.int64)


def shallow(spec: tfkit.ModelSpec) -> list[str]:
    """Overrides that leave two layers of every stack of layers that are alike, and all of the others."""
    stacks = {name: node.options.layers for name, node in spec.nodes.items() if node.kind == "stack"}
    alike = [name for name, (first, *more) in stacks.items() if not (more or first.layers or first.shared)]
    return ["expect=null", *(f"nodes.{name}.num_layers=2" for name in alike)]


@pytest.fixture
def unchecked(unread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids without numbers cannot be looked at: where a model would, it takes the longest."""
    monkeypatch.setattr(recurrent, "_trimmed", lambda visible, may_wait: (visible, None, visible.shape[1]))
    monkeypatch.setattr(heads.Pool, "_end", lambda self, tokens: (tokens.ids == self.end_id).to(torch.int64).argmax(1))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.stem)
def test_flops_of_every_shipped_spec(path: Path, catalogue: tfkit.Catalogue) -> None:
    """With two layers where all layers of a stack are alike; two specs as they are."""
    spec = tfkit.load_spec(path, catalogue)
    if path.stem not in ("transformer-base", "whisper-small") and not EVERY_CASE:
        spec = tfkit.load_spec(path, catalogue, shallow(spec))
    graph = tfkit.graph_of(spec)
    lengths = {name: 5 + 3 * number for number, name in enumerate(max_input_lengths(graph))}
    costs = node_costs(graph, Batch(2, lengths))
    counted = flops_of(spec, catalogue, lengths)
    assert {name: flops for name, terms in costs.items() if (flops := sum(term.flops for term in terms))} == counted


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("score", ["dot", "general", "additive", "{kind: concat, d_score: 5}"])
def test_flops_of_groups_windows_and_scores(
    score: str, spec_from: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue
) -> None:
    spec = spec_from(GROUPS.replace("general", score))
    costs = node_costs(tfkit.graph_of(spec), Batch(2, {"tokens": 7}))
    counted = flops_of(spec, catalogue, {"tokens": 7})
    assert sum(term.flops for term in costs["body"]) == counted["body"]
    assert total_flops(costs) == sum(counted.values())


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "options",
    [
        "sink: true",
        "sink: true, score: general, value_dim: 3",
        "output_gate: elementwise, value_dim: 3",
        "output_gate: headwise, value_residual: learned",
        "query_key_norm: rms_norm, query_key_norm_over: all_heads",
        "shared_projection: key_value, output_projection: false",
    ],
)
def test_flops_of_sinks_gates_and_value_residuals(
    options: str, spec_from: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue
) -> None:
    groups = "[{repeat: 2, attention: {num_kv_heads: 2, score: general}}, {attention: {window: 3}}]"
    assert groups in GROUPS
    spec = spec_from(GROUPS.replace(groups, f"[{{repeat: 3, attention: {{num_kv_heads: 2, {options}}}}}]"))
    costs = node_costs(tfkit.graph_of(spec), Batch(2, {"tokens": 7}))
    assert sum(term.flops for term in costs["body"]) == flops_of(spec, catalogue, {"tokens": 7})["body"]
    built = tfkit.build(spec, catalogue, device="meta")
    assert sum(parameter.numel() for parameter in built.parameters()) == tfkit.graph_of(spec).parameters()


def test_attention_and_projections_are_named_apart(graph_from: Callable[..., tfkit.Graph]) -> None:
    nodes = """nodes:
  source:  {kind: tokens}
  target:  {kind: tokens, share: source}
  encoder: {kind: stack, input: source, num_layers: 3, ffn: {activation: swiglu}}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 2, causal: true, attention: {num_kv_heads: 2}}
  logits:  {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""
    B, S, T, M, H, G, D, F, V = 2, 5, 7, 24, 6, 2, 4, 20, 19
    costs = node_costs(graph_from(nodes), Batch(B, {"source": S, "target": T}))
    terms = {name: {cost.term: cost.flops for cost in found} for name, found in costs.items()}
    assert terms["encoder"]["projections"] == 3 * 2 * B * S * 4 * M * H * D
    assert terms["encoder"]["attention"] == 3 * 4 * B * H * S * S * D
    assert terms["encoder"]["ffn"] == 3 * 2 * B * S * 3 * M * F
    own, cross = 2 * B * T * (2 * M * H * D + 2 * M * G * D), 2 * B * (2 * T * M * H * D + 2 * S * M * G * D)
    assert terms["decoder"]["projections"] == 2 * (own + cross)
    assert terms["decoder"]["attention"] == 2 * 4 * B * H * D * (T * T + T * S)
    assert terms["logits"] == {"logits": 2 * B * T * M * V}


KEPT = [
    "transformer-tiny", "tiny-parallel", "tiny-geglu", "tiny-rotary", "tiny-relative-shaw", "tiny-normless", "tiny-additive",
    "tiny-general", "tiny-sinusoidal-concat", "sentence-classifier", "rnnsearch-small", "conditional-gru-small",
    "rnn-encoder-decoder-small", "vit-tiny",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("size", "length"), [(4, 20), (2, 90)])
@pytest.mark.parametrize("name", KEPT)
def test_estimated_activations_are_near_those_of_autograd(
    name: str, size: int, length: int, catalogue: tfkit.Catalogue
) -> None:
    spec = tfkit.load_spec(SPECS / f"{name}.yaml", catalogue)
    graph = tfkit.graph_of(spec)
    built = tfkit.build(spec, catalogue, backend="eager").eval()
    lengths = {name: length + 3 * number for number, name in enumerate(max_input_lengths(graph))}
    given = {name: input_of(rule, size, lengths.get(name, 0)) for name, rule in built.plan.inputs.items()}
    weights = {parameter.untyped_storage().data_ptr() for parameter in built.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes() // tensor.element_size(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = built(**given)
    for output in outputs.values():
        note(output)
    measured = sum(elements for elements, _ in kept.values())
    assert total_elements(node_costs(graph, Batch(size, lengths))) == pytest.approx(measured, rel=0.25)
