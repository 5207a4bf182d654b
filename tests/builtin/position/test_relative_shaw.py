from __future__ import annotations

import pytest
import torch

from tfkit.builtin.position.entries import RelativeShawOptions
from tfkit.builtin.position.score_biases import relative_shaw as build
from tfkit.plugin.model_parts import PositionSite


@pytest.mark.parametrize(("queries", "keys", "offset"), [(5, 5, 0), (2, 9, 4), (9, 3, 0)])
def test_equals_the_equation_for_every_pair(queries, keys, offset, span_of):
    torch.manual_seed(0)
    scheme = build(RelativeShawOptions(max_distance=2), PositionSite(0, 3, 4)).double()
    torch.nn.init.normal_(scheme.table)
    query, key = torch.randn(2, 3, queries, 4, dtype=torch.float64), torch.randn(2, 3, keys, 4, dtype=torch.float64)
    bias = scheme.bias(query, scheme.prepare(span_of(queries, keys, offset)), 0.25).values
    assert bias.shape == (2, 3, queries, keys)
    scores = 0.25 * query @ key.transpose(2, 3) + bias
    for i in range(queries):
        for j in range(keys):
            vector = scheme.table[max(-2, min(2, j - (offset + i))) + 2]
            expected = 0.25 * (query[:, :, i] * (key[:, :, j] + vector)).sum(-1)
            torch.testing.assert_close(scores[:, :, i, j], expected)


def test_bias_has_the_querys_dtype(span_of):
    scheme = build(RelativeShawOptions(), PositionSite(0, 3, 4)).bfloat16()
    torch.nn.init.normal_(scheme.table)
    query = torch.randn(1, 3, 5, 4).bfloat16()
    assert scheme.bias(query, scheme.prepare(span_of(5)), 0.5).values.dtype is torch.bfloat16
