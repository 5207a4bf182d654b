from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tfkit.builtin.norm.entries import BatchNormOptions
from tfkit.builtin.norm.norms import batch_norm as build

REAL = torch.tensor([[True, True, True, True], [True, False, True, False], [False, False, False, False]])


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("affine", [True, False])
def test_equals_torch_on_the_real_tokens_in_outputs_statistics_and_gradients(affine):
    torch.manual_seed(0)
    ours = build(BatchNormOptions(eps=0.1, momentum=0.3, affine=affine), 5).double()
    theirs = nn.BatchNorm1d(5, eps=0.1, momentum=0.3, affine=affine).double()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_()
    theirs.load_state_dict(ours.state_dict(), strict=False)
    for step in range(3):
        x = torch.randn(3, 4, 5, dtype=torch.float64) + step
        x[~REAL] = 1e9  # what padding holds counts nowhere
        x.requires_grad_()
        rows = x.detach()[REAL].requires_grad_()
        y, expected, towards = ours(x, REAL)[REAL], theirs(rows), torch.randn(6, 5, dtype=torch.float64)
        close(y, expected)
        leaves = list(ours.parameters()), list(theirs.parameters())
        gradients = torch.autograd.grad(y, [x, *leaves[0]], towards)
        wanted = torch.autograd.grad(expected, [rows, *leaves[1]], towards)
        close(gradients[0][REAL], wanted[0])
        assert not gradients[0][~REAL].any()
        for one, other in zip(gradients[1:], wanted[1:], strict=True):
            close(one, other)
        close(ours.running_mean, theirs.running_mean)
        close(ours.running_var, theirs.running_var)
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    close(ours.eval()(x), theirs.eval()(x.flatten(0, 1)).view(3, 4, 5))
    assert sorted(dict(ours.named_buffers())) == ["running_mean", "running_var"]


def test_equals_the_equation_as_a_loop():
    torch.manual_seed(0)
    x, ours = torch.randn(3, 4, 2, dtype=torch.float64), build(BatchNormOptions(eps=0.1), 2).double()
    y = ours(x, REAL)
    for feature in range(2):
        tokens = [float(x[row, place, feature]) for row in range(3) for place in range(4) if REAL[row, place]]
        mean = sum(tokens) / 6
        squares = sum((token - mean) ** 2 for token in tokens)
        want = [(token - mean) / (squares / 6 + 0.1) ** 0.5 for token in tokens]
        close(y[..., feature][REAL], torch.tensor(want, dtype=torch.float64))
        close(ours.running_mean[feature], torch.tensor(0.1 * mean, dtype=torch.float64))
        close(ours.running_var[feature], torch.tensor(0.9 + 0.1 * squares / 5, dtype=torch.float64))


def test_one_token_has_no_variance_and_leaves_the_running_statistics():
    ours = build(BatchNormOptions(), 2)
    y = ours(torch.tensor([[[3.0, 4.0], [5.0, 6.0]]]), torch.tensor([[True, False]]))
    assert not y[0, 0].any()
    assert y.isfinite().all()
    assert torch.equal(ours.running_mean, torch.zeros(2))
    assert torch.equal(ours.running_var, torch.ones(2))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputation_moves_the_running_statistics_once(reentrant):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, requires_grad=True)
    ours, plain = build(BatchNormOptions(), 5), build(BatchNormOptions(), 5)
    checkpoint(ours, x, REAL, use_reentrant=reentrant).sum().backward()
    plain(x, REAL)
    assert torch.equal(ours.running_mean, plain.running_mean)
    assert torch.equal(ours.running_var, plain.running_var)


def test_half_dtypes_are_rounded_once():
    torch.manual_seed(0)
    ours = build(BatchNormOptions(), 64).bfloat16()
    x = (torch.randn(3, 4, 64) + 10).bfloat16()
    exact = build(BatchNormOptions(), 64).double()(x.double())
    assert ours(x).dtype is torch.bfloat16
    assert ((ours(x).double() - exact).abs() <= 2**-8 * exact.abs() + 1e-4).all()
