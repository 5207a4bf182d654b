"""A9: attention weights on request, beside an unchanged call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import Model

SITES = [f"encoder.{n}.self_attention" for n in (0, 1)] + [
    f"decoder.{n}.{kind}" for n in (0, 1) for kind in ("self_attention", "cross_attention")
]


SCHEMES = ["sinusoidal", "rotary_half", "alibi", "relative_t5", "relative_shaw"]


@pytest.fixture
def pair(ids_of: Callable[..., Tensor]) -> dict[str, Tensor]:
    source, target = ids_of(3, 9, 1), ids_of(3, 8, 2)
    source[1, 6:] = 0
    return {"source": source, "target": target}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "scheme"),
    [(backend, scheme) for backend in ("eager", "sdpa", "auto") for scheme in SCHEMES] + [("flex", "alibi")],
)
def test_a9_outputs_are_the_same_to_the_bit_and_rows_sum_to_one(
    scheme: str, backend: str, model_of: Callable[..., Model], pair: dict[str, Tensor]
) -> None:
    model = model_of(position=scheme, backend=backend)
    with torch.no_grad():
        plain = model(**pair)
        asked = model(**pair, weights="*")
    assert set(plain) == {"logits"}
    assert torch.equal(asked["logits"], plain["logits"])
    assert set(asked["weights"]) == set(SITES)
    for site, weights in asked["weights"].items():
        queries, keys = (8, 9) if "cross" in site else (9, 9) if "encoder" in site else (8, 8)
        assert weights.shape == (3, 6, queries, keys)
        assert not weights.requires_grad
        assert float((weights.sum(3) - 1).abs().max()) <= (keys + 4) * 2.0**-23
        if "decoder" in site and "self" in site:
            assert bool((weights.triu(1) == 0).all())
        else:
            assert bool((weights[1, :, :, 6:] == 0).all())
            assert bool((weights[1, :, :, :6] > 0).all())


def test_a9_training_with_dropout_is_not_disturbed(model_of: Callable[..., Model], pair: dict[str, Tensor]) -> None:
    model = model_of("encoder-decoder", "defaults.dropout=0.3", "defaults.attention.dropout=0.2").train()
    found = []
    for sites in ((), ("decoder.*",)):
        torch.manual_seed(4)
        outputs = model(**pair, weights=sites)
        found.append((outputs["logits"], *torch.autograd.grad(outputs["logits"].sum(), list(model.parameters()))))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    weights = outputs["weights"]["decoder.1.cross_attention"]
    assert float((weights.sum(3) - 1).abs().max()) <= 20 * 2.0**-23  # before dropout


def test_a9_weights_are_those_of_the_equation(
    model_of: Callable[..., Model], pair: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read the weights out of the value path: with the value projection's output replaced by one-hot rows, attention returns
    its weights."""
    model = model_of(
        "decoder", "body.num_layers=1", "defaults.attention.num_heads=1", "defaults.d_model=8", dtype=torch.float64
    )
    attention = model.nodes["body"].layers[0].branches["self_attention"]
    tokens = pair["target"]
    merged: list[Tensor] = []
    attention.value.register_forward_hook(lambda module, inputs, output: torch.eye(8, dtype=torch.float64).expand(3, 8, 8))
    attention.output.register_forward_pre_hook(lambda module, inputs: merged.append(inputs[0]))
    with torch.no_grad():
        weights = model(tokens=tokens, weights="body.0.*")["weights"]["body.0.self_attention"]
    torch.testing.assert_close(weights[:, 0], merged[0], rtol=0, atol=8 * 2.0**-52)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("decoder.1.cross_attention", SITES[5:]),
        (["decoder.*.cross_attention", "encoder.0.*"], [SITES[3], SITES[5], SITES[0]]),
        ("*self*", [site for site in SITES if "self" in site]),
        ("*.0.*attention", [site for site in SITES if ".0." in site]),
        ([], []),
    ],
)
def test_a9_sites_are_named_or_matched(
    patterns: Any, expected: list[str], model_of: Callable[..., Model], pair: dict[str, Tensor]
) -> None:
    outputs = model_of()(**pair, weights=patterns)
    assert set(outputs.get("weights", {})) == set(expected)


@pytest.mark.parametrize(
    "pattern", ["decoder.2.cross_attention", "encoder.0", "decoder", "0.*.attention", "encoder.0.self_attention.*"]
)
def test_an_unknown_site_is_an_error_that_names_the_known(
    pattern: str, model_of: Callable[..., Model], pair: dict[str, Tensor]
) -> None:
    with pytest.raises(tfkit.InputError, match=r"TFK076.*encoder\.0\.self_attention") as error:
        model_of()(**pair, weights=[SITES[0], pattern])
    assert f"`{pattern}`" in str(error.value)


def test_weights_of_a_shared_layer_differ_by_application(model_of: Callable[..., Model], pair: dict[str, Tensor]) -> None:
    model = model_of("decoder", "body.layers=[{repeat: 3, shared: true}]")
    weights = model(tokens=pair["target"], weights="*")["weights"]
    assert list(weights) == [f"body.{n}.self_attention" for n in range(3)]
    assert not torch.equal(weights["body.0.self_attention"], weights["body.1.self_attention"])


def test_weights_while_decoding(model_of: Callable[..., Model], pair: dict[str, Tensor]) -> None:
    model = model_of(position="rotary_half", dtype=torch.float64)
    with torch.no_grad():
        want = model(**pair, weights=["decoder.*"])["weights"]
    state = model.start(source=pair["source"])
    model.step(state, pair["target"][:, :5], True)
    got = model.step(state, pair["target"][:, 5:], True, weights=["decoder.*"])["weights"]
    assert set(got) == set(want)
    for site, weights in got.items():
        torch.testing.assert_close(weights, want[site][:, :, 5:], rtol=0, atol=1000 * 2.0**-52)
