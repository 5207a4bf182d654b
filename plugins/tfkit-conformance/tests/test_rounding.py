"""The rule for whole computations: other orders of summing stay within it, a millionth does not."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import layer_norm

from whole_models.noise import Noise
from whole_models.rounding import APART, rounding

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(4, 9, 32, generator=DRAW, dtype=torch.float64)
LAYERS = [torch.randn(32, 32, generator=DRAW, dtype=torch.float64) / 5 for _ in range(6)]


def network(order, dtype=torch.float64, factor=1.0):
    """Six layers, with the features of every product summed in another order."""
    x = X.to(dtype)
    weights = [weight.to(dtype).requires_grad_() for weight in LAYERS]
    y = x
    for weight in weights:
        y = y + torch.tanh(layer_norm(y, (32,))[..., order] @ weight.T[order]) * factor
        y = torch.softmax(y, -1).mean(1, keepdim=True) + y
    return [y, *torch.autograd.grad(y.square().sum(), weights)]


PLAIN, MIXED = torch.arange(32), torch.randperm(32, generator=DRAW)


def worst(got, want, allowed):
    return max(float(((a.detach() - b.detach()).abs() / c).max()) for a, b, c in zip(got, want, allowed, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_another_order_of_summation_stays_within_and_is_not_far_below(dtype):
    want, got = network(PLAIN), network(MIXED, dtype)
    allowed = [APART * bound for bound in rounding(lambda: network(PLAIN), torch.finfo(dtype).eps / 2)]
    assert 1e-5 < worst(got, want, allowed) <= 1


def test_a_small_mutant_exceeds_it_forward_and_backward():
    want, got = network(PLAIN), network(PLAIN, factor=1 + 1e-9)
    allowed = [APART * bound for bound in rounding(lambda: network(PLAIN))]
    for a, b, c in zip(got, want, allowed, strict=True):
        assert worst([a], [b], [c]) > 1
        assert float(c.max()) < 1e-9 * float(b.detach().abs().max())


def test_it_grows_with_what_the_rest_makes_of_a_disturbance():
    def cancelled(large):
        return [(X * large + 1.0) - X * large]

    small, far = rounding(lambda: cancelled(1.0)), rounding(lambda: cancelled(1e6))
    assert 1e5 < float(far[0].mean() / small[0].mean()) < 1e7


def test_nothing_is_disturbed_that_rounds_nothing_and_hidden_scores_stay_hidden():
    x = X[0].clone().requires_grad_()
    with Noise(0) as noise:
        shown = torch.cat([x, x]).masked_fill(torch.eye(18, 32, dtype=torch.bool), -torch.inf)
        weights = torch.softmax(shown, -1)
    assert torch.equal(shown.isinf(), torch.eye(18, 32, dtype=torch.bool))
    assert torch.equal(weights == 0, shown.isinf())
    assert noise.elements > 0
    with Noise(0) as noise:
        torch.where(x > 0, x, 0.0).reshape(-1)[::2].clone()
    assert noise.elements == 0


def by_hand(x, weight, dy):
    """A layer norm and its backward in the order of the textbook."""
    mean = x.mean(-1, keepdim=True)
    r = ((x - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    normed = (x - mean) * r
    g = dy * weight
    dx = r * (g - g.mean(-1, keepdim=True) - normed * (g * normed).mean(-1, keepdim=True))
    return [normed * weight, dx, (dy * normed).sum((0, 1))]


@pytest.mark.parametrize("width", [1, 2, 32])
def test_norms_whose_terms_cancel_are_given_what_their_terms_round(width):
    """Over one number a layer norm's gradient is exactly 0; what is left is the rounding of terms that cancel."""
    x, dy = (X[..., :width].roll(turn, 0).clone() for turn in (0, 1))
    weight = torch.linspace(0.5, 2, width, dtype=torch.float64)

    def torchs():
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        y = layer_norm(leaves[0], (width,), leaves[1])
        return [y, *torch.autograd.grad(y, leaves, dy)]

    allowed = [APART * bound for bound in rounding(torchs)]
    assert worst(by_hand(x, weight, dy), torchs(), allowed) <= 1
    if width > 2:
        assert worst([t * (1 + 1e-9) for t in by_hand(x, weight, dy)], torchs(), allowed) > 1


def test_a_softmax_whose_gradient_is_constant_is_given_what_its_terms_round():
    def scored(shift):
        scores = (X + shift).requires_grad_()
        weights = torch.softmax(scores, -1)
        return [weights, *torch.autograd.grad(weights, scores, torch.full_like(weights, 0.3))]

    assert float(scored(0.0)[1].abs().max()) < 1e-15
    assert worst(scored(7.0), scored(0.0), [APART * bound for bound in rounding(lambda: scored(0.0))]) <= 1
