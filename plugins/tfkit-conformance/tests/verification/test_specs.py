"""The shipped specs pass, shrunk: every one of them can be shrunk, and those with the rarest parts are run here."""

from __future__ import annotations

from pathlib import Path

import pytest

import tfkit
from tfkit_conformance.verification import verify
from verification.shrunk import OVERRIDES

SPECS = Path(__file__).parents[4] / "specs"
RUN = (
    "albert-base", "bert-pretraining", "clip-b32", "clip-text", "gemma2-9b", "layer-mix", "t5-small", "vit-b16", "vit-tiny",
    "whisper-small", "olmo2-7b", "gpt-oss-20b-dense", "modernbert-base", "t5gemma-base",
    "rnnsearch", "luong", "conditional-gru", "rnn-encoder-decoder", "tiny-additive", "tiny-general",
)  # fmt: skip
EAGER = ("gemma2-9b", "t5gemma-base", "rnnsearch", "conditional-gru", "rnn-encoder-decoder", "tiny-additive")
"""Softcap and scores that sdpa does not compute, and a model without attention, which takes no backend."""


def test_every_shipped_spec_is_in_the_table(catalogue):
    assert {path.stem for path in SPECS.glob("*.yaml")} == set(OVERRIDES)
    for name, overrides in OVERRIDES.items():
        assert tfkit.graph_of(tfkit.load_spec(SPECS / f"{name}.yaml", catalogue, overrides)).parameters() < 100_000


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_shipped_spec_passes(name, catalogue):
    spec = tfkit.load_spec(SPECS / f"{name}.yaml", catalogue, OVERRIDES[name])
    report = verify(spec, backends=["sdpa" if name not in EAGER else "eager"], catalogue=catalogue)
    assert [row for row in report.rows if row.status in ("failed", "inconclusive", "not run")] == []
    assert report.verdict == "VERIFIED"
    assert max(row.worst for row in report.rows if row.worst is not None) > 0.1, (
        "the bounds are not so loose that nothing nears them"
    )


@pytest.mark.slow
def test_shared_and_absent_projections_pass(catalogue):
    changes = [
        *OVERRIDES["transformer-tiny"], "expect=null", "encoder.num_layers=1", "decoder.num_layers=1",
        "encoder.attention.shared_projection=key_value", "decoder.attention.shared_projection=query_key_value",
        "decoder.attention.output_projection=false",
    ]  # fmt: skip
    spec = tfkit.load_spec(SPECS / "transformer-tiny.yaml", catalogue, changes)
    report = verify(spec, backends=["eager"], dtypes=("float32",), catalogue=catalogue)
    assert [row for row in report.rows if row.status in ("failed", "inconclusive", "not run")] == []
