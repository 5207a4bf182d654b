"""The loss against torch's own, and against the formulas of its docstring in float64."""

import pytest
import torch
from torch.nn import functional

from tfkit.train.loss import DEVICE_BLOCK, _blocks, smoothed_cross_entropy


def case(dtype=torch.float32, rows=7, length=5, size=11):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(rows, length, size, generator=generator, dtype=torch.float64)
    labels = torch.randint(1, size, (rows, length), generator=generator)
    labels[0, 3:], labels[4, 1:] = 0, 0
    return logits.to(dtype).requires_grad_(), labels


def test_uniform_is_torchs_cross_entropy():
    logits, labels = case()
    loss, nll = smoothed_cross_entropy(logits, labels, 0.1, "uniform", 0)
    (mine,) = torch.autograd.grad(loss, logits)
    flat, ids = logits.flatten(0, 1), labels.flatten()
    theirs = functional.cross_entropy(flat, ids, ignore_index=0, label_smoothing=0.1, reduction="sum")
    (gradient,) = torch.autograd.grad(theirs, logits)
    torch.testing.assert_close(loss, theirs)
    torch.testing.assert_close(mine, gradient)
    torch.testing.assert_close(nll, functional.cross_entropy(flat, ids, ignore_index=0, reduction="sum"))
    assert not nll.requires_grad


@pytest.mark.parametrize("kind", ["uniform", "others"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_it_is_the_formula(kind, smoothing):
    logits, labels = case()
    loss, _ = smoothed_cross_entropy(logits, labels, smoothing, kind, 0)
    (mine,) = torch.autograd.grad(loss, logits)
    exact = logits.detach().double().requires_grad_()
    every = -exact.log_softmax(-1)
    own = every.gather(-1, labels[..., None]).squeeze(-1)
    size = logits.shape[-1]
    rest = every.sum(-1) / size if kind == "uniform" else (every.sum(-1) - own) / (size - 1)
    wanted = (((1 - smoothing) * own + smoothing * rest) * (labels != 0)).sum()
    (gradient,) = torch.autograd.grad(wanted, exact)
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=0)
    torch.testing.assert_close(mine.double(), gradient, rtol=1e-5, atol=1e-6)


def test_padding_has_no_gradient_and_half_precision_is_summed_in_float32():
    logits, labels = case(torch.bfloat16)
    loss, nll = smoothed_cross_entropy(logits, labels, 0.1, "uniform", 0)
    assert loss.dtype is nll.dtype is torch.float32
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.dtype is torch.bfloat16
    assert not gradient[labels == 0].any()
    assert gradient[labels != 0].any(-1).all()


def test_another_device_holds_few_logits_in_float32_at_a_time():
    blocks = _blocks(torch.empty(8192, 37000, device="meta"))
    assert [row for block in blocks for row in range(8192)[block]] == list(range(8192))
    assert max(block.stop - block.start for block in blocks) * 37000 <= DEVICE_BLOCK < len(blocks) * 2**26


@pytest.mark.parametrize("block", [1, 11, 24, 2**18])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_does_not_depend_on_how_many_rows_are_looked_at_together(block, dtype, monkeypatch):
    logits, labels = case(dtype)
    wanted = smoothed_cross_entropy(logits, labels, 0.1, "others", 0)
    (gradient,) = torch.autograd.grad(wanted[0], logits)
    monkeypatch.setattr("tfkit.train.loss.BLOCK", block)
    found = smoothed_cross_entropy(logits, labels, 0.1, "others", 0)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert torch.equal(torch.autograd.grad(found[0], logits)[0], gradient)
