"""The matrices of one head: attention written out with them is what the module computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import InputError, Model

B, S, T = 2, 5, 4
SITES = ["encoder.0.self_attention", "decoder.1.cross_attention"]


def recorded(model: Model, site: str, given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """What the attention at a site reads as queries and as keys, and what it gives."""
    found: list[Tensor] = []

    def note(module: torch.nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        found.extend((arguments[0], output))

    with model.backends.attention(site).register_forward_hook(note):
        outputs = model(**given)
    return found[0], outputs["encoder"] if "cross" in site else found[0], found[1]


@pytest.mark.parametrize("bias", ["true", "false"])
@pytest.mark.parametrize(
    "heads",
    [
        {"num_kv_heads": 6}, {"num_kv_heads": 2}, {"num_kv_heads": 1, "head_dim": 5},
        {"shared_projection": "key_value", "num_kv_heads": 2}, {"shared_projection": "query_key_value"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("site", SITES)
def test_attention_from_the_matrices_of_all_heads_is_the_module_s(
    site: str, heads: dict[str, Any], bias: str, model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    options = [f"defaults.attention.{name}={value}" for name, value in heads.items()]
    overrides = (*options, f"defaults.attention.bias={bias}", "outputs=[logits, encoder]")
    model = model_of("encoder-decoder", *overrides, dtype=torch.float64).eval()
    given = {"source": ids_of(B, S, 1), "target": ids_of(B, T, 2)}
    x, y, want = recorded(model, site, given)
    dim = heads.get("head_dim", 4)
    got = torch.zeros_like(want)
    for number in range(6):
        head = model.head(site, number)
        assert head.query.shape == head.key.shape == head.value.shape == (dim, 24)
        assert head.output.shape == (24, dim)
        assert (head.key is head.value or torch.equal(head.key, head.value)) == ("shared_projection" in heads)
        assert (head.query_bias is None) == (head.output_bias is None) == (bias == "false")
        query, key, value = x @ head.query.T, y @ head.key.T, y @ head.value.T
        if head.query_bias is not None:
            query, key, value = query + head.query_bias, key + head.key_bias, value + head.value_bias
        weights = (query @ key.mT / dim**0.5).softmax(-1)
        got = got + weights @ value @ head.output.T
    if head.output_bias is not None:
        got = got + head.output_bias
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_a_head_is_a_view_and_grouped_heads_share_their_keys(model_of: Callable[..., Model]) -> None:
    model = model_of("decoder", "defaults.attention.num_kv_heads=2")
    zero, two, three = (model.head("body.1.self_attention", number) for number in (0, 2, 3))
    assert zero.key.data_ptr() == two.key.data_ptr() != three.key.data_ptr()
    with torch.no_grad():
        three.output.zero_()
    weight = model.nodes["body"].layers[1].branches["self_attention"].output.weight
    assert not weight[:, 12:16].any()
    assert weight[:, :12].any()
    assert weight[:, 16:].any()


def test_an_unknown_site_or_head_is_an_error(model_of: Callable[..., Model]) -> None:
    model = model_of("decoder")
    with pytest.raises(InputError, match=r"no attention site `body\.1\.attention`; did you mean `body\.1\.self_attention`"):
        model.head("body.1.attention", 0)
    for head in (6, -1, True):
        with pytest.raises(InputError, match=r"has no head .*heads are 0\.\.5"):
            model.head("body.1.self_attention", head)


def test_recurrent_attention_has_no_matrices() -> None:
    model = tfkit.build("specs/rnnsearch-small.yaml", device="meta")
    with pytest.raises(InputError, match=r"`decoder\.0\.cross_attention` has no projection matrices"):
        model.head("decoder.0.cross_attention", 0)
