"""Gradients reach every parameter that learns, and none that does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tfkit.nn.model import Model

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
