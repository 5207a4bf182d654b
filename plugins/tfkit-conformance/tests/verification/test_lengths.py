"""The lengths that `verify` draws go beyond the numbers at which a model may change its path."""

from __future__ import annotations

from kill_matrix.models import broken_decoding
from kill_matrix.models.tampering import with_caches
from tfkit import build, graph_of, parse_spec
from tfkit_conformance import verify
from tfkit_conformance.verification.batch import LONG, long_lengths, turning_points

SPEC = """
tfkit: 1
name: far
defaults:
  {d_model: 12, vocab_size: 23, pad_id: 0, norm: layer_norm, position: {kind: relative_t5, buckets: 8, max_distance: 60},
   placement: pre, attention: {num_heads: 2, backend: eager}, ffn: {d_ff: 20, activation: relu}}
nodes:
  tokens: {kind: tokens}
  body:   {kind: stack, input: tokens, layers: [{self_attention: {window: 90}}, {}], causal: true}
  logits: {kind: token_logits, input: body, share: tokens}
outputs: [logits]
"""


def test_windows_and_distances_are_passed_where_time_allows(catalogue):
    spec = parse_spec(SPEC, catalogue)
    graph, model = graph_of(spec), build(spec, catalogue)
    assert {8, 60, 90} <= turning_points(graph, model)
    assert 12 not in turning_points(graph, model)
    assert min(long_lengths(graph, model)) > 90
    large = build("specs/transformer-base.yaml", catalogue, device="meta")
    assert long_lengths(graph_of(large.spec), large) == LONG


def test_a_cache_that_is_wrong_behind_a_window_is_not_verified(catalogue):
    model = build(parse_spec(SPEC, catalogue), catalogue)
    parts = ("whole model",)
    assert verify(model, catalogue=catalogue, parts=parts).verdict == "VERIFIED"
    broken = with_caches(model, broken_decoding.wrong_from(91))
    report = verify(broken, catalogue=catalogue, parts=parts)
    assert "decoding in chunks" in {row.property for row in report.rows if row.status == "failed"}
