"""Products of few rows: the same numbers as torch's, whichever way they are computed."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tfkit.nn.thin import project, thin_linear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 1), (3, 1), (2, 4), (9, 1), (1, 7)])
@pytest.mark.parametrize(("inner", "outer"), [(5, 11), (11, 5), (6, 6)])
def test_it_equals_the_linear_map(inner, outer, batch, length, bias):
    linear = nn.Linear(inner, outer, bias, dtype=torch.float64)
    x = torch.randn(batch, length, inner, dtype=torch.float64)
    with torch.no_grad():
        # One sum of `inner` products and a bias: each rounding is at most half a unit of the sum of magnitudes.
        magnitude = functional.linear(x.abs(), linear.weight.abs(), None if linear.bias is None else linear.bias.abs())
        difference = (thin_linear(x, linear.weight, linear.bias) - linear(x)).abs()
        assert bool((difference <= 2 * (inner + 2) * 2.0**-53 * magnitude).all())


def test_gradients_take_the_ordinary_way():
    linear = nn.Linear(4, 6)
    x = torch.randn(2, 1, 4, requires_grad=True)
    project(linear, x, stepwise=True).sum().backward()
    torch.testing.assert_close(x.grad, linear.weight.sum(0).expand(2, 1, 4))


def test_a_module_that_is_more_than_a_linear_map_is_called_itself():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    x, hooked, doubled = torch.randn(3, 1, 4), nn.Linear(4, 6), Doubled(4, 6)
    hooked.register_forward_hook(lambda module, inputs, output: output + 1)
    with torch.no_grad():
        assert torch.equal(project(doubled, x, True), doubled(x))
        assert torch.equal(project(hooked, x, True), hooked(x))
