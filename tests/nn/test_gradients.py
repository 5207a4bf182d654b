"""Gradients reach every parameter that learns, and none that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import Model
from tfkit.plugin import AttentionBackend, hookimpl

SCHEMES = [
    "none", "{kind: sinusoidal, combine: concat}", "{kind: learned, max_len: 8}", "rotary_half", "alibi",
    "{kind: relative_t5, buckets: 8, max_distance: 7}", "{kind: relative_shaw, max_distance: 7}",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("placement", ["post", "pre", "sandwich", "residual_post", "deepnorm", "parallel", "none"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_parameter_has_a_gradient(
    scheme: str, placement: str, backend: str, model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    extras = ("defaults.attention.query_key_norm=rms_norm", "logits.bias=true", "encoder.num_layers=1", "decoder.num_layers=1")
    model = model_of("encoder-decoder", *extras, position=scheme, placement=placement, activation="swiglu", backend=backend)
    ids = torch.arange(16).view(2, 8) + 3
    model(source=ids, target=ids.flip(1))["logits"].logsumexp(2).mean().backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None or not bool(parameter.grad.any())]
    keyless = [name for name in without if name.endswith("attention.key.bias")]
    assert without == keyless


@pytest.mark.parametrize("score", ["additive", "general", "concat"])
def test_score_functions_learn(score: str, model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    model = model_of("encoder-decoder", f"defaults.attention.score={score}")
    model(source=ids_of(2, 6, 1), target=ids_of(2, 5, 2))["logits"].logsumexp(2).mean().backward()
    learning = [name for name, parameter in model.named_parameters() if ".score." in name]
    assert learning
    for name in learning:
        assert bool(model.get_parameter(name).grad.any()), name


def test_a_frozen_bias_stays(model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    model = model_of("encoder-decoder", "logits.bias=frozen")
    assert not model.nodes["logits"].bias.requires_grad
    assert model.parameter_count(trainable=False) == 19
    model(source=ids_of(2, 6, 1), target=ids_of(2, 5, 2))["logits"].sum().backward()
    assert model.nodes["logits"].bias.grad is None


@pytest.mark.parametrize("backend", ["sdpa", "acme.once", "eager"])
def test_second_derivatives_are_computed_or_refused_with_the_name_of_a_backend_that_has_them(
    backend: str, spec_of: Callable[..., tfkit.ModelSpec], ids_of: Callable[..., Tensor]
) -> None:
    catalogue = tfkit.load_catalogue().with_plugin(_Once(), "acme")
    model = tfkit.build(spec_of("decoder"), catalogue, backend=backend)
    loss = model(tokens=ids_of(2, 5)).logits.square().mean()
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
    if backend == "eager":
        assert all(bool(each.isfinite().all()) for each in torch.autograd.grad(norm, parameters))
        return
    with pytest.raises(tfkit.BackendRefused, match=f"TFK060.*`{backend}` has no second derivatives.*use `eager`"):
        norm.backward()


class _Once:
    """A backend of a plugin whose gradients cannot be differentiated, `eager` underneath."""

    @hookimpl
    def tfkit_attention_backends(self) -> list[AttentionBackend]:
        eager = tfkit.load_catalogue().find("backend", "eager")
        capabilities = eager.capabilities.model_copy(update={"double_backward": False})
        return [replace(eager, name="acme.once", capabilities=capabilities, auto=())]
