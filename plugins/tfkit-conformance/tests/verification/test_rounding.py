"""The yardstick of whole models covers the orders in which the kernels of a dtype sum, and no more."""

from __future__ import annotations

import pytest
import torch

import tfkit
from tfkit_conformance.attention.bound import UNIT
from tfkit_conformance.finding import Violation
from tfkit_conformance.verification.batch import draw
from tfkit_conformance.verification.rounding import Scale, Sums, Yardstick, cast, reach, scale_of, sums_of
from tfkit_conformance.verification.row import close
from tfkit_conformance.verification.truth import Reference, Stochastic

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


def test_the_sums_of_a_node_are_those_of_all_that_it_is_computed_from():
    model, graph = tfkit.build(SPEC, seed=0), tfkit.graph_of(tfkit.parse_spec(SPEC))
    sums = sums_of(graph, model, 9)
    projections, attention = 4 * 24, 6 + 9  # weights of 24 inputs each; a head of 6 features and 9 keys
    narrow = 24 + projections + attention + 24 + 48
    assert sums["tokens"] == Sums(1, 24)
    assert sums["narrow"] == Sums(1 + 4 + 2 + 2, narrow)
    assert sums["body"] == Sums(9 + 8, narrow + projections + attention + 24 + 3072)
    assert sums["logits"] == sums["body"] + Sums(1, 24)


def truth_of(model, dtype):
    batch = draw(model, {"tokens": 9}, 3, 0, "cpu")
    return batch, Reference(tfkit.graph_of(model.spec), model, 0).truth(batch).at(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_summed_in_order_are_within_the_yardstick_and_a_small_mutant_is_not(dtype):
    model = tfkit.build(SPEC, seed=0).eval()
    batch, truth = truth_of(model, dtype)
    evaluated = cast(model, dtype)
    output = evaluated.nodes["body"].layers[0].branches["ffn"].output
    output.forward = lambda x: one_after_the_other(output.weight, output.bias, x).detach()
    got, want = evaluated(**batch.call(dtype=dtype))["logits"].detach(), truth.outputs["logits"]
    assert not torch.equal(got.double(), want)
    shown = batch.visible["tokens"]
    close("order", got, want, truth.yardstick.tolerance("logits"), "summed in order", "`logits`", shown)
    small = 1e-4 if dtype == torch.float32 else 1e-12
    moved = got + small * want.abs().max()
    with pytest.raises(Violation, match=r"they are \d.* apart, \d.* is allowed"):
        close("order", moved, want, truth.yardstick.tolerance("logits"), "moved", "`logits`", shown)


@pytest.mark.parametrize("place", ["narrow.layers.0.branches.ffn.input", "body.layers.0.branches.self_attention.value"])
def test_no_error_of_the_model_under_test_enters_its_tolerance(place):
    right, wrong = tfkit.build(SPEC, seed=0).eval(), tfkit.build(SPEC, seed=0).eval()
    module = wrong.get_submodule(f"nodes.{place}")
    module.register_forward_hook(lambda module, given, y: 1.5 * y)
    (_, honest), (_, judged) = (truth_of(model, torch.float32) for model in (right, wrong))
    assert judged.yardstick == honest.yardstick
    assert all(torch.equal(judged.outputs[name], tensor) for name, tensor in honest.outputs.items())


def test_a_dtype_takes_the_deviation_by_the_ratio_of_the_unit_roundoffs():
    scale = Scale(error=1e-6, rms=1.0, largest=3.0, elements=100, sums=Sums(4, 60))
    yardstick = Yardstick({"y": scale}, torch.float32)
    assert yardstick.deviation("y") == 1e-6
    assert yardstick.at(torch.bfloat16).deviation("y") == 1e-6 * 2**16
    floor = (60 / 6 + 4) ** 0.5 * UNIT[torch.float64]
    assert yardstick.at(torch.float64).deviation("y") == max(floor, 1e-6 * 2.0**-29)
    assert yardstick.tolerance("y") == pytest.approx(2**0.5 * 1e-6 * reach(100))


def test_the_largest_of_many_errors_is_within_reach():
    errors = torch.randn(10**6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert 4.0 < float(errors.abs().max()) < reach(10**6) < 10.0
    scale = scale_of(torch.ones(10**6, dtype=torch.float64), [1.0 + 1e-7 * errors], Sums())
    assert scale.error == pytest.approx(1e-7, rel=0.01)


def test_stochastic_arithmetic_errs_by_the_roundoff_of_float32_forward_and_backward():
    x = torch.randn(200, 96, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    W = torch.randn(200, 96, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)

    def both():
        y = x @ W.mT
        (gradient,) = torch.autograd.grad(y.sum(), W)
        return y.detach(), gradient

    exact = both()
    with Stochastic(0):
        moved = both()
    for got, want, terms in zip(moved, exact, (96, 200), strict=True):
        share = (got - want).square().mean().sqrt() / want.square().mean().sqrt()
        assert 0.5 < float(share) / ((terms / 6) ** 0.5 * UNIT[torch.float32]) < 2.0
    assert all(torch.equal(got, want) for got, want in zip(both(), exact, strict=True)), "outside, nothing errs"


@pytest.mark.slow
def test_decoding_a_model_of_long_sums_in_chunks_is_verified():
    spec = {"tfkit": 1, "name": "x", "extends": "specs/gpt2.yaml", "defaults": {"d_model": 24, "attention": {"num_heads": 4}}}
    spec["nodes"] = {"body": {"num_layers": 2}}
    report = tfkit.verify(spec, lengths={"tokens": 9}, backends=["sdpa"], parts=["whole model"])
    assert report.ok, str(report)
