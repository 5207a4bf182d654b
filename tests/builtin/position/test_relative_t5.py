from __future__ import annotations

import pytest
import torch
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from tfkit.builtin.position.entries import RelativeT5Options, t5_unsupported
from tfkit.builtin.position.score_biases import RelativeT5, bucket, relative_t5 as build
from tfkit.plugin import DistanceBias
from tfkit.plugin.model_parts import PositionSite


def exact_bucket(distance: int, buckets: int, max_distance: int, causal: bool) -> int:
    """The definition in whole numbers: no logarithm, no rounding."""
    after = 0
    if not causal:
        buckets //= 2
        after = buckets if distance > 0 else 0
    distance = max(-distance, 0) if causal else abs(distance)
    exact = buckets // 2
    if distance < exact:
        return after + distance
    wide, rest = 0, buckets - exact
    while wide < rest - 1 and distance**rest * exact ** (wide + 1) >= max_distance ** (wide + 1) * exact**rest:
        wide += 1
    return after + exact + wide


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (4, 3), (8, 16), (20, 100), (48, 1000), (64, 256), (6, 800)])
def test_bucket_is_exact(buckets, max_distance, causal):
    distance = torch.arange(-2 * max_distance, 2 * max_distance + 1)
    expected = [exact_bucket(int(item), buckets, max_distance, causal) for item in distance]
    assert bucket(distance, buckets, max_distance, causal).tolist() == expected


def scheme_and_peer(buckets: int, max_distance: int, causal: bool) -> tuple[RelativeT5, T5Attention]:
    torch.manual_seed(0)
    options = RelativeT5Options(buckets=buckets, max_distance=max_distance)
    config = T5Config(
        num_heads=3, relative_attention_num_buckets=buckets, relative_attention_max_distance=max_distance, is_decoder=causal
    )
    peer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    scheme = build(options, PositionSite(0, 3, 4, causal=causal))
    torch.nn.init.normal_(scheme.table)
    with torch.no_grad():
        peer.relative_attention_bias.weight.copy_(scheme.table)
    return scheme, peer


def per_pair(bias: DistanceBias, queries: int, keys: int, offset: int) -> torch.Tensor:
    distance = torch.arange(keys) - (offset + torch.arange(queries)).unsqueeze(1)
    return bias.values[:, (distance - bias.low).clamp(0, bias.values.shape[1] - 1)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20)])
@pytest.mark.parametrize(("queries", "keys", "offset"), [(5, 5, 0), (400, 450, 0), (1, 300, 299), (7, 333, 150)])
def test_equals_hugging_face_bit_for_bit(buckets, max_distance, causal, queries, keys, offset, span_of):
    scheme, peer = scheme_and_peer(buckets, max_distance, causal)
    bias = scheme.bias(torch.zeros(1, 3, queries, 4), scheme.prepare(span_of(queries, keys, offset)), 0.3)
    theirs = peer.compute_bias(queries, keys, past_seen_tokens=offset)
    assert torch.equal(per_pair(bias, queries, keys, offset), theirs[0])


@pytest.mark.parametrize("causal", [True, False])
def test_gradient_of_the_table_is_that_of_the_per_pair_bias(causal, span_of):
    scheme, peer = scheme_and_peer(8, 20, causal)
    scheme, peer = scheme.double(), peer.double()
    bias = scheme.bias(torch.zeros(1, 3, 30, 4), scheme.prepare(span_of(30)), 0.3)
    weights = torch.randn(3, 30, 30, dtype=torch.float64)
    (per_pair(bias, 30, 30, 0) * weights).sum().backward()
    (peer.compute_bias(30, 30)[0] * weights).sum().backward()
    torch.testing.assert_close(scheme.table.grad, peer.relative_attention_bias.weight.grad)


@pytest.mark.parametrize(
    ("options", "causal", "expected_reason"),
    [
        ({"buckets": 7}, False, "`buckets` 7 is odd"),
        ({"buckets": 2}, False, "`buckets` 2 is too few"),
        ({"buckets": 32, "max_distance": 8}, False, "`max_distance` 8 must be more than the 8"),
        ({"buckets": 32, "max_distance": 16}, True, "`max_distance` 16 must be more than the 16"),
    ],
)
def test_reasons_name_the_numbers(options, causal, expected_reason):
    (reason,) = t5_unsupported(RelativeT5Options(**options), PositionSite(0, 3, 4, causal=causal))
    assert expected_reason in reason


def test_supported_calls_are_not_refused():
    assert not t5_unsupported(RelativeT5Options(), PositionSite(0, 3, 4))
    assert not t5_unsupported(RelativeT5Options(buckets=7), PositionSite(0, 3, 4, causal=True))
    assert not t5_unsupported(RelativeT5Options(buckets=4, max_distance=2), PositionSite(0, 3, 4))
