"""bfloat16 products: within their bound of the float64 product, each row as alone, and models that decode with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import tfkit
from small_translator import SOURCES, finds_in_a_batch_as_alone, small
from tfkit.cpu import bfloat16, products
from tfkit.cpu.bfloat16 import Bfloat16Weight, bfloat16_kernel_here
from tfkit.cpu.low_precision import LowPrecisionHead, LowPrecisionLinear
from tfkit.nn import precision
from tfkit.nn.precision import round_weights, rounding_plan

# A text is evaluated when a test begins: to examine the products takes a second, in every process that collects.
needs_bfloat16 = pytest.mark.skipif("bfloat16_kernel_here() is None", reason="not run: this processor has no bfloat16 products")
U = 2.0**-8
"""The largest relative error of a number rounded to bfloat16."""


@needs_bfloat16
@pytest.mark.parametrize(("outer", "inner"), [(1, 1), (7, 33), (64, 64), (300, 130), (40, 1025)])
@pytest.mark.parametrize("rows", [1, 2, 17, 80])
def test_a_product_is_within_its_bound(outer: int, inner: int, rows: int) -> None:
    weight = torch.randn(outer, inner) * torch.logspace(-3, 3, outer)[:, None]
    x = torch.randn(rows, inner) * torch.logspace(-4, 4, rows)[:, None]
    exact, size = x.double() @ weight.double().t(), x.double().abs() @ weight.double().abs().t()
    bound = (2 * U + U * U) * size + U * (exact.abs() + 3 * U * size) + (inner + 8) * 2.0**-24 * size
    assert bool(((Bfloat16Weight(weight).product(x) - exact).abs() <= bound).all())


@needs_bfloat16
def test_infinities_nan_and_no_rows() -> None:
    x, weight = torch.randn(4, 40), torch.randn(9, 40)
    x[0], x[1, 5], x[2, 7] = 0, torch.nan, torch.inf
    found = Bfloat16Weight(weight).product(x)
    assert torch.equal(found[0], torch.zeros(9))
    assert bool(found[1].isnan().all())
    assert torch.equal(found[2], (x @ weight.t())[2])
    assert torch.equal(found[3:], Bfloat16Weight(weight).product(x[3:]))
    assert Bfloat16Weight(weight).product(x[:0]).shape == (0, 9)


@needs_bfloat16
@pytest.mark.parametrize("bias", [False, True])
def test_the_largest_logits_are_those_of_float32(bias: bool) -> None:
    """bfloat16 gives many words of a large vocabulary the same logit."""
    weight, x, added = torch.randn(9000, 32), torch.randn(3, 2, 32), torch.randn(9000) if bias else None
    found, exact = LowPrecisionHead(Bfloat16Weight(weight)).logits(x, weight, added), nn.functional.linear(x, weight, added)
    best = exact.topk(4, 2).indices
    torch.testing.assert_close(found.gather(2, best), exact.gather(2, best))


@needs_bfloat16
def test_a_sentence_is_found_in_a_batch_as_alone(small_weights_rounded: None) -> None:
    model = small()
    round_weights(model, "bfloat16", [])
    assert sum(type(module) is LowPrecisionLinear for module in model.modules()) == 6 + 2 * 10
    finds_in_a_batch_as_alone(model)


@needs_bfloat16
def test_a_model_loads_in_bfloat16_and_is_not_saved(small_weights_rounded: None, tmp_path) -> None:
    model = small()
    inputs = {"source": torch.tensor(SOURCES[:1]), "target": torch.tensor([[1, 5, 6]])}
    before = model(**inputs).logits.detach()
    tfkit.save(model, tmp_path / "model")
    loaded = tfkit.load(tmp_path / "model", precision="bfloat16").eval()
    round_weights(model, "bfloat16", [])
    after = loaded(**inputs).logits
    assert loaded.precision == "bfloat16"
    assert torch.equal(after, model(**inputs).logits)
    assert not after.requires_grad
    assert 0 < float((after - before).abs().max()) < 0.1 * float(before.abs().max())
    with pytest.raises(tfkit.StoreError, match="TFK081 the model was loaded with bfloat16 weights"):
        tfkit.save(loaded, tmp_path / "again")


@needs_bfloat16
def test_the_plan_counts_two_bytes_for_each_number() -> None:
    catalogue = tfkit.load_catalogue()
    spec = tfkit.load_spec("specs/transformer-base.yaml", catalogue)
    plan = rounding_plan(tfkit.build(spec, catalogue, device="meta"), "bfloat16", [])
    rounded = sum(outer * inner for outer, inner in plan["weights"].values())
    assert plan["kernel"] == bfloat16_kernel_here()
    assert 2 * rounded < plan["bytes"] < 2 * rounded + 4 * 100_000
    assert plan["bytes"] < 0.51 * plan["float32_bytes"]


def test_a_machine_without_instructions_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    tfkit.save(small(), tmp_path / "model")
    without = replace(precision.LOW_PRECISIONS["bfloat16"], kernel=lambda kernels: None)
    monkeypatch.setitem(precision.LOW_PRECISIONS, "bfloat16", without)
    with pytest.raises(tfkit.BuildError, match=r"no bfloat16 products(.|\n)*bfloat16 needs amx_bf16 or avx512_bf16"):
        tfkit.load(tmp_path / "model", precision="bfloat16")
    with pytest.raises(tfkit.BuildError, match="TFK047 bfloat16 is for CPUs, and the device is cuda"):
        tfkit.load(tmp_path / "model", precision="bfloat16", device="cuda")


class _Wrong:
    """Replaces oneDNN's product."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.kind == "raises":
            raise RuntimeError("mkldnn_linear: bf16 path needs avx512")
        if self.kind == "sums":
            total = torch.zeros(len(x), len(weight), dtype=torch.bfloat16)
            for k in range(x.shape[1]):
                total += x[:, k, None] * weight[:, k]
            return total
        last = weight.shape[1] - (len(x) < 8)  # a short batch loses a feature
        return (x[:, :last].float() @ weight[:, :last].float().t()).bfloat16()


@pytest.mark.parametrize("kind", ["raises", "sums", "short"])
def test_a_kernel_that_is_wrong_is_not_used(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "PACK", lambda weight, batch: weight)
    monkeypatch.setattr(products, "product", lambda x, weight, bias=None: (x.float() @ weight.float().t()).bfloat16())
    assert bfloat16.is_right() or products.MULTIPLY is None
    monkeypatch.setattr(products, "product", _Wrong(kind))
    assert not bfloat16.is_right()
