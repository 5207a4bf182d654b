"""The float64 reference against torch's own attention and autograd in float64."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attention_calls import BY_NAME, typed
from tfkit.builtin.attention.entries import EAGER
from tfkit.plugin import DistanceBias, LinearBias
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.compare import leaves_of
from tfkit_conformance.attention.reference import reference, visible_pairs
from tfkit_conformance.attention.table import CASES
from tfkit_conformance.finding import Violation


def by_torch(inputs, shown):
    """The same call, built from a mask and torch's kernel; the pair-by-pair bias is looked up key by key."""
    B, H, Q, K = shown.shape
    bias = torch.zeros(B, H, Q, K, dtype=torch.float64)
    if inputs.bias is not None:
        values = leaves_of(inputs)["bias"].double()
        if not isinstance(inputs.bias, (LinearBias, DistanceBias)):
            bias = values.broadcast_to(B, H, Q, K)
        else:
            offset = torch.as_tensor(inputs.mask.offset).expand(B)
            rows = []
            for b in range(B):
                for i in range(Q):
                    for j in range(K):
                        d = j - (int(offset[b]) + i)
                        if isinstance(inputs.bias, LinearBias):
                            rows.append(-values * abs(d))
                        else:
                            rows.append(values[:, min(max(d - inputs.bias.low, 0), values.shape[1] - 1)])
            bias = torch.stack(rows, 1).view(H, B, Q, K).transpose(0, 1)
    key, value = (t.repeat_interleave(H // t.shape[1], 1) for t in (inputs.key, inputs.value))
    if inputs.softcap is None:
        return scaled_dot_product_attention(inputs.query, key, value, bias.masked_fill(~shown, -torch.inf), scale=inputs.scale)
    scores = torch.tanh(inputs.query @ key.mT * inputs.scale / inputs.softcap) * inputs.softcap + bias
    weights = torch.softmax(scores.masked_fill(~shown, -1e300), -1) * shown.any(-1, keepdim=True)
    return weights @ value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_output_and_gradients_equal_torchs(case):
    inputs, gradient = typed(case, torch.float64).inputs(), typed(case, torch.float64).grad_output()
    output = by_torch(inputs, visible_pairs(inputs.mask, case.B, case.H, case.Q, case.K))
    leaves = leaves_of(inputs)
    wanted = dict(zip(leaves, torch.autograd.grad(output, list(leaves.values()), gradient), strict=True))
    found = reference(inputs, gradient)
    torch.testing.assert_close(found.output, output.detach())
    for leaf in leaves:
        torch.testing.assert_close(found.gradients[leaf], wanted[leaf].double(), check_dtype=False)
    torch.testing.assert_close(found.weights.sum(-1), (~found.lse.isinf()).double())


def test_a_dropout_draw_multiplies_the_weights_and_nothing_else():
    case = CASES[0]
    inputs, gradient = typed(case, torch.float64).inputs(), typed(case, torch.float64).grad_output()
    drawn = torch.bernoulli(torch.full((case.B, case.H, case.Q, case.K), 0.7, dtype=torch.float64)) / 0.7
    weights = torch.softmax(inputs.scale * inputs.query @ inputs.key.mT, -1)
    output = (weights * drawn) @ inputs.value
    wanted = torch.autograd.grad(output, [inputs.query, inputs.key, inputs.value], gradient)
    found = reference(inputs, gradient, drawn)
    torch.testing.assert_close(found.output, output.detach())
    torch.testing.assert_close([found.gradients[leaf] for leaf in ("query", "key", "value")], list(wanted))


@pytest.mark.parametrize("name", ["plain", "dense_bias", "linear_bias_offsets", "distance_bias_padded"])
def test_every_quantity_is_float64_and_the_scores_are_the_sum_of_their_parts(name):
    inputs = typed(BY_NAME[name]).inputs()
    found = reference(inputs)
    B, H, Q, V = found.output.shape
    assert found.grad_output.shape == (B, H, Q, V)
    assert not found.grad_output.any()
    assert (found.drawn == 1).all()
    tensors = {field.name: getattr(found, field.name) for field in fields(found)} | found.gradients
    wide = {name: value.dtype for name, value in tensors.items() if isinstance(value, torch.Tensor) and name != "visible"}
    assert set(wide.values()) == {torch.float64}, wide
    assert (found.bias is None) == (inputs.bias is None)
    torch.testing.assert_close(found.scores, found.capped if found.bias is None else found.capped + found.bias, rtol=0, atol=0)


def test_a_backend_that_calls_the_reference_is_reported():
    subject = backend_under_test(EAGER, attend=lambda inputs, options: reference(inputs))
    with pytest.raises(Violation, match=r"^contract: `eager` calls the reference that checks it$") as caught:
        subject.call(typed(BY_NAME["plain"]).inputs())
    assert caught.value.check == "contract"
