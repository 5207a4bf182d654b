"""One model, four backends, one answer: the swap of an implementation changes nothing but rounding (A11, A12)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import Model

SCHEMES = [
    "none", "sinusoidal", "sinusoidal_halves", "{kind: learned, max_len: 16}", "rotary_half", "rotary_interleaved", "alibi",
    "{kind: relative_t5, buckets: 6, max_distance: 7}", "{kind: relative_shaw, max_distance: 3}",
]  # fmt: skip
PLACEMENTS = ["post", "pre", "sandwich", "residual_post", "deepnorm", "{kind: parallel, norms: separate}", "parallel", "none"]
PAIRS = [(scheme, PLACEMENTS[number % len(PLACEMENTS)]) for number, scheme in enumerate(SCHEMES)]
PAIRS += [(SCHEMES[(number + 4) % len(SCHEMES)], placement) for number, placement in enumerate(PLACEMENTS)]


@pytest.fixture
def pair(ids_of: Callable[..., Tensor]) -> dict[str, Tensor]:
    source, target = ids_of(3, 9, 1), ids_of(3, 8, 2)
    source[1, 6:] = 0
    target[2, :5] = 0
    return {"source": source, "target": target}


def test_every_placement_of_the_catalogue_is_here(catalogue: tfkit.Catalogue) -> None:
    builtin = {name for name, offer in catalogue.registered["placement"].items() if offer.plugin == "builtin"}
    assert builtin == {text.strip("{}").split(",")[0].removeprefix("kind: ") for text in PLACEMENTS}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_eager_sdpa_and_auto_agree(
    scheme: str, placement: str, model_of: Callable[..., Model], pair: dict[str, Tensor], rounding: Callable[..., float]
) -> None:
    overrides = ("encoder.num_layers=1", "decoder.num_layers=1", "defaults.attention.num_kv_heads=3")
    model = model_of("encoder-decoder", *overrides, position=scheme, placement=placement, dtype=torch.float64)
    outputs = {}
    for backend in ("eager", "sdpa", "auto"):
        model.set_backend(backend)
        with torch.no_grad():
            outputs[backend] = model(**pair)["logits"]
    bound = rounding(model, outputs["eager"], 9)
    real = pair["target"] != 0
    for backend in ("sdpa", "auto"):
        assert float((outputs[backend] - outputs["eager"])[real].abs().max()) <= bound
    assert bound < 1e-6 * float(outputs["eager"].std())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "scheme", "placement"),
    [("sdpa", *pair) for pair in PAIRS] + [("flex", *pair) for pair in PAIRS[: len(SCHEMES)]],
)
def test_float32_agrees_with_eager_in_float64(
    backend: str,
    scheme: str,
    placement: str,
    model_of: Callable[..., Model],
    pair: dict[str, Tensor],
    rounding: Callable[..., float],
) -> None:
    overrides = ("encoder.num_layers=1", "decoder.num_layers=1")
    exact = model_of("encoder-decoder", *overrides, position=scheme, placement=placement, dtype=torch.float64, backend="eager")
    model = model_of("encoder-decoder", *overrides, position=scheme, placement=placement, backend=backend)
    exact.load_state_dict(model.state_dict())
    with torch.no_grad():
        want, got = exact(**pair)["logits"], model(**pair)["logits"]
    real = pair["target"] != 0
    bound = rounding(model, got, 9)
    assert bound < 0.02 * float(want.std())
    assert float((got - want)[real].abs().max()) <= bound


@pytest.mark.parametrize("scheme", ["alibi", "{kind: relative_t5, buckets: 6}", "relative_shaw", "rotary_half"])
def test_gradients_agree_and_reach_tables_behind_a_bias(
    scheme: str, model_of: Callable[..., Model], pair: dict[str, Tensor], rounding: Callable[..., float]
) -> None:
    model = model_of(position=scheme, dtype=torch.float64)
    found = {}
    for backend in ("eager", "sdpa"):
        model.set_backend(backend)
        loss = model(**pair)["logits"][pair["target"] != 0].logsumexp(1).mean()
        found[backend] = torch.autograd.grad(loss, list(model.parameters()))
    bound = rounding(model, loss.detach(), 9)
    for (name, _), one, other in zip(model.named_parameters(), found["eager"], found["sdpa"], strict=True):
        assert float((one - other).abs().max()) <= bound * max(1.0, float(one.abs().max())), name


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("scheme", ["sinusoidal", "rotary_half", "relative_shaw"])
def test_a12_names_and_weights_do_not_depend_on_a_backend(
    scheme: str, placement: str, spec_of: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue
) -> None:
    spec = spec_of(position=scheme, placement=placement)
    states = {backend: tfkit.build(spec, catalogue, backend=backend).state_dict() for backend in ("eager", "sdpa")}
    model = tfkit.build(spec, catalogue)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.set_backend(["sdpa", "eager"])
    states["changed"] = model.state_dict()
    for state in states.values():
        assert list(state) == list(before)
        assert all(torch.equal(state[name], tensor) for name, tensor in before.items())
