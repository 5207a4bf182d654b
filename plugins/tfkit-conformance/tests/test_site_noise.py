"""Attention sites disturbed by what their contract allows: restored afterwards, larger than their operations alone, far below a
mutant."""

from __future__ import annotations

import pytest
import torch

import tfkit
from tfkit import load_catalogue, parse_spec
from tfkit.plugin.model_parts import MultiHeadAttention
from whole_models.noise import Noise
from whole_models.rounding import rounding
from whole_models.site_noise import disturbed_sites

SPEC = """
tfkit: 1
name: small
defaults: {d_model: 8, vocab_size: 11, norm: layer_norm, position: %s, placement: pre,
           attention: {num_heads: 2, backend: eager}, ffn: {d_ff: 12, activation: relu}}
nodes:
  tokens: {kind: tokens}
  body:   {kind: stack, input: tokens, num_layers: 2, causal: true}
  logits: {kind: token_logits, input: body}
outputs: [logits]
"""


@pytest.fixture(scope="module", params=["sinusoidal", "relative_t5"])
def model(request):
    made = tfkit.build(parse_spec(SPEC % request.param, load_catalogue()), dtype=torch.float64, seed=0).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    return made


def compute(model):
    logits = model(tokens=torch.arange(10).view(2, 5))["logits"]
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [logits.detach(), *torch.autograd.grad(logits.square().sum(), weights)]


def test_the_model_is_restored(model):
    sites = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    before, plain = [dict(module.choices) for module in sites], compute(model)
    with disturbed_sites(model, Noise(0)):
        during = [dict(module.choices) for module in sites]
    assert [module.choices for module in sites] == before != during
    assert all(torch.equal(one, other) for one, other in zip(plain, compute(model), strict=True))


def test_outside_a_noise_the_sites_move_by_their_bounds_alone(model):
    """2^-33 for a unit roundoff: the output moves, and by little."""
    plain = compute(model)
    with disturbed_sites(model, Noise(0)):
        moved = compute(model)
    for one, other in zip(plain, moved, strict=True):
        assert float((one - other).abs().max()) < 1e-5 * max(1.0, float(one.abs().max()))
    assert not torch.equal(plain[0], moved[0])


@pytest.mark.slow
def test_a_backend_may_be_off_by_its_bound_and_not_by_a_mutant(model):
    """At least what the operations of one backend may be off by, and a tiny part of what a slip in a mask changes."""
    of_sites, of_operations = rounding(lambda: compute(model), model=model), rounding(lambda: compute(model))
    for wide, narrow, value in zip(of_sites, of_operations, compute(model), strict=True):
        assert float(wide.max()) > 0.2 * float(narrow.max())
        assert float(wide.max()) < 1e-9 * max(1.0, float(value.abs().max()))
