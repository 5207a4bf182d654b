"""The yardstick of whole models covers the orders in which the kernels of a dtype sum, and no more."""

from __future__ import annotations

import pytest
import torch

import tfkit
from tfkit_conformance.finding import Violation
from tfkit_conformance.verification.batch import draw
from tfkit_conformance.verification.comparison import close
from tfkit_conformance.verification.rounding import FACTOR, UNIT, cast, longest_sums, yardstick

SPEC = {
    "tfkit": 1,
    "name": "wide-ffn",
    "defaults": {
        "d_model": 24,
        "placement": "pre",
        "norm": "layer_norm",
        "attention": {"num_heads": 4},
        "ffn": {"d_ff": 3072, "activation": "gelu_tanh"},
    },
    "nodes": {
        "tokens": {"kind": "tokens", "vocab_size": 40},
        "narrow": {"kind": "stack", "input": "tokens", "num_layers": 1, "ffn": {"d_ff": 48}},
        "body": {"kind": "stack", "input": "narrow", "num_layers": 1},
        "logits": {"kind": "token_logits", "input": "body", "share": "tokens"},
    },
    "outputs": ["logits"],
}


def one_after_the_other(weight, bias, x):
    """x W^T + b with every product rounded and added in its turn."""
    total = torch.zeros(*x.shape[:-1], len(weight), dtype=x.dtype)
    for column, feature in zip(weight.T, x.unbind(-1), strict=True):
        total += feature[..., None] * column
    return total + bias


@pytest.mark.parametrize("n", [96, 384, 1536, 6144])
def test_a_sum_in_order_errs_by_the_root_of_its_length(n):
    draw = torch.Generator().manual_seed(n)
    weight = torch.randn(64, n, generator=draw)
    x = torch.randn(16, n, generator=draw)
    found = one_after_the_other(weight, torch.zeros(64), x).double()
    exact = x.double() @ weight.double().T
    share = (found - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert 0.7 < float(share) / ((n / 6) ** 0.5 * UNIT[torch.float32]) < 1.4


def test_the_longest_sum_counts_what_a_node_is_computed_from():
    model = tfkit.build(SPEC, seed=0)
    assert longest_sums(model, 9) == {"tokens": 24, "narrow": 48, "body": 3072, "logits": 3072}
    assert longest_sums(model, 100)["narrow"] == 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_summed_in_order_are_within_the_yardstick_and_a_small_mutant_is_not(dtype):
    model = tfkit.build(SPEC, seed=0).eval()
    batch = draw(model, {"tokens": 9}, 3, 0, "cpu")
    stick, _ = yardstick(cast(model, torch.float32), cast(model, torch.float64), batch)
    stick, evaluated = stick.at(dtype), cast(model, dtype)
    want = evaluated(**batch.call())["logits"].detach()
    output = evaluated.nodes["body"].layers[0].branches["ffn"].output
    output.forward = lambda x: one_after_the_other(output.weight, output.bias, x).detach()
    got = evaluated(**batch.call())["logits"].detach()
    assert not torch.equal(got, want)
    close("order", got, want, stick.tolerance("logits"), "summed in order", "`logits`")
    diagnostic = 1e-3 if dtype == torch.float32 else 1e-11
    with pytest.raises(Violation, match=r"they are \d.* apart, \d.* is allowed"):
        close("order", got + diagnostic * want.abs().max(), want, stick.tolerance("logits"), "moved", "`logits`")


def test_half_dtypes_sum_in_float32_and_their_limits_do_not_grow_with_the_length():
    model = tfkit.build(SPEC, seed=0).eval()
    batch = draw(model, {"tokens": 9}, 3, 0, "cpu")
    stick, _ = yardstick(cast(model, torch.float32), cast(model, torch.float64), batch)
    half = stick.at(torch.bfloat16)
    assert half.tolerance("logits") == FACTOR * max(half.error["logits"], 4 * UNIT[torch.bfloat16]) * half.size["logits"]


@pytest.mark.slow
def test_decoding_a_model_of_long_sums_in_chunks_is_verified():
    spec = {"tfkit": 1, "name": "x", "extends": "specs/gpt2.yaml", "defaults": {"d_model": 24, "attention": {"num_heads": 4}}}
    spec["nodes"] = {"body": {"num_layers": 2}}
    report = tfkit.verify(spec, lengths={"tokens": 9}, backends=["sdpa"], parts=["whole model"])
    assert report.ok, str(report)
