"""Attention in a sub-layer or node of a plugin works as in a stack: plans, backends, weights, caches, saving."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import attention_plugin
import tfkit
from tfkit import BackendRefused, BuildError, Model
from tfkit.graph.plan import plan
from tfkit.inspection import Target

SPEC = """
tfkit: 1
name: reader
defaults:
  d_model: 24
  vocab_size: 19
  pad_id: 0
  position: sinusoidal
  placement: pre
  norm: layer_norm
  attention: {num_heads: 6}
  ffn: {d_ff: 20, activation: gelu}
nodes:
  source:  {kind: tokens, end_id: 2}
  target:  {kind: tokens, start_id: 1, end_id: 2}
  encoder: {kind: stack, input: source, num_layers: 1}
  decoder: {kind: stack, input: target, causal: true, num_layers: 2, sublayers: [{kind: acme.gated, num_heads: 4}, ffn]}
  reader:  {kind: acme.reader, input: decoder, memory: encoder, num_heads: 3}
  logits:  {kind: token_logits, input: reader}
outputs: [logits]
"""
SITES = ["encoder.0.self_attention", "decoder.0.acme_gated", "decoder.1.acme_gated", "reader.0.history", "reader.0.lookup"]
OWN = SITES[1:]


@pytest.fixture(scope="module")
def wider() -> tfkit.Catalogue:
    return tfkit.load_catalogue().with_plugin(attention_plugin, "acme-attention")


@pytest.fixture
def model(wider: tfkit.Catalogue) -> Model:
    built = tfkit.build(tfkit.parse_spec(SPEC, wider), wider, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return built.eval()


@pytest.fixture
def pair(ids_of: Callable[..., Tensor]) -> dict[str, Tensor]:
    source, target = ids_of(3, 7, 1), ids_of(3, 8, 2)
    source[1, 5:] = 0
    return {"source": source, "target": target}


@torch.no_grad()
def logits(model: Model, pair: dict[str, Tensor]) -> Tensor:
    found: Tensor = model(**pair).logits
    return found


def test_every_site_is_planned_and_gets_a_backend(model: Model, wider: tfkit.Catalogue) -> None:
    graph = tfkit.graph_of(model.spec)
    planned = {row.site: row.chosen for row in plan(graph, wider, Target(training=False, queries=8, keys=8))}
    assert sorted(model.sites) == sorted(planned) == sorted(SITES)
    assert None not in planned.values()
    assert model.memory_sites == {"reader.0.lookup"}


def test_the_backend_of_every_site_can_be_set(model: Model, pair: dict[str, Tensor], rounding: Callable[..., float]) -> None:
    model.set_backend("eager")
    want = logits(model, pair)
    for site in OWN:
        called: list[str] = []
        model.set_backend("sdpa", site)
        use = next(use for use in model.attention_sites() if use.site == site)
        (bound,) = use.attention.choices[use.application].candidates

        def attend(inputs: Any, options: Any, bound: Any = bound, called: list[str] = called) -> Any:
            called.append(bound.kind)
            return bound.attend(inputs, options)

        spied = type(bound)(bound.entry, bound.options, attend, bound.prepare, bound.name)
        use.attention.choices[use.application].candidates = (spied,)
        assert float((logits(model, pair) - want).abs().max()) <= rounding(model, want, 8)
        assert called == ["sdpa"]
    assert model.sites == {site: "sdpa" if site in OWN else "eager" for site in SITES}


def test_a_backend_that_cannot_serve_a_site_of_a_plugin_is_refused(model: Model) -> None:
    before = model.sites
    with pytest.raises(BackendRefused) as refused:
        model.set_backend("cudnn")
    assert [diagnostic.path for diagnostic in refused.value.diagnostics] == SITES[:3]  # a head_dim of 4 or 6, not of 8
    assert model.sites == before


def test_the_weights_of_every_site_are_returned_and_change_nothing(model: Model, pair: dict[str, Tensor]) -> None:
    plain = logits(model, pair)
    with torch.no_grad():
        outputs = model(**pair, weights=["reader.*", "*.acme_gated"])
    assert torch.equal(outputs.logits, plain)
    assert set(outputs["weights"]) == set(OWN)
    heads = {"reader.0.lookup": (3, 3, 8, 7), "reader.0.history": (3, 3, 8, 8)}
    for site, weights in outputs["weights"].items():
        assert weights.shape == heads.get(site, (3, 4, 8, 8))
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        if site != "reader.0.lookup":
            assert not weights.triu(1).any()
    assert not outputs["weights"]["reader.0.lookup"][1, :, :, 5:].any()


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_incremental_decoding_gives_the_full_forward(
    backend: str, model: Model, pair: dict[str, Tensor], rounding: Callable[..., float]
) -> None:
    model.set_backend(backend)
    want = logits(model, pair)
    state = model.start(source=pair["source"])
    steps = [model.step(state, ids).logits for ids in pair["target"].split([3, 1, 1, 2, 1], 1)]
    assert float((torch.cat(steps, 1) - want).abs().max()) <= rounding(model, want, 8)
    assert {site: cache.length for site, cache in state.caches.items()} == dict.fromkeys(OWN[:3], 8)
    assert set(state.crossed) == {"reader.0.lookup"}


def test_beams_share_prefixes_at_the_sites_of_a_plugin(model: Model, pair: dict[str, Tensor]) -> None:
    shared, copied = model.start(source=pair["source"]), model.start(source=pair["source"])
    copied.shares = False
    ids = torch.ones(3, 1, dtype=torch.int64)
    for rows in ([0, 0, 1, 1, 2, 2], [1, 0, 2, 2, 5, 4], [0, 0, 3, 2, 5, 5]):
        one, other = model.step(shared, ids).logits, model.step(copied, ids).logits
        torch.testing.assert_close(one, other)
        ids = one[:, -1].argmax(-1, keepdim=True)
        for state in (shared, copied):
            model.branch(state, torch.tensor(rows), 2)
        ids = ids[torch.tensor(rows)] + torch.arange(6)[:, None] % 2
    assert shared.shares
    assert {cache.key.shape[0] for cache in shared.caches.values() if cache.key is not None} == {3}


def test_a_node_that_reads_its_memory_otherwise_gets_copies(model: Model, pair: dict[str, Tensor]) -> None:
    model.nodes["reader"].memory_only_attended = False  # type: ignore[assignment]
    state = model.start(source=pair["source"])
    model.step(state, torch.ones(3, 1, dtype=torch.int64))
    model.branch(state, torch.tensor([0, 0, 1, 1, 2, 2]), 2)
    assert not state.shares
    assert state.crossed["reader.0.lookup"][0].shape[0] == 6


def test_a_saved_model_has_the_same_sites_and_outputs(
    model: Model, pair: dict[str, Tensor], wider: tfkit.Catalogue, tmp_path: Path
) -> None:
    model.set_backend(["sdpa", "eager"], "reader.*")
    back = tfkit.load(tfkit.save(model, tmp_path / "out"), catalogue=wider).eval()
    assert back.requested_backends == model.requested_backends
    assert torch.equal(logits(back, pair), logits(model, pair))


def test_gradients_reach_the_attention_of_a_plugin(model: Model, pair: dict[str, Tensor]) -> None:
    model.train()(**pair).logits.sum().backward()
    for name, parameter in model.named_parameters():
        if "key.bias" not in name:  # softmax cancels it
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


def test_attention_that_is_no_site_is_an_error_of_its_plugin(wider: tfkit.Catalogue) -> None:
    spec = tfkit.parse_spec(SPEC.replace("acme.reader", "acme.silent"), wider)
    with pytest.raises(BuildError) as found:
        tfkit.build(spec, wider)
    messages = [diagnostic.message for diagnostic in found.value.diagnostics]
    assert messages == [
        "the attention site `reader.0.lookup` has no module",
        "`nodes.reader.lookup` is a multi-head attention, but no attention site",
    ]
