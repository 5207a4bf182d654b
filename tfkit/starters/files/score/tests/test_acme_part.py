"""Proofs about a small model with `acme.part`; `tfkit verify model.yaml` prints them."""

from pathlib import Path

from tfkit_conformance import verify

MODEL = Path(__file__).parents[1] / "model.yaml"


def test_a_model_with_it_is_verified() -> None:
    report = verify(MODEL, backends=["eager"])
    assert [row.message for row in report.rows if row.status == "failed"] == []
    assert report.verdict == "VERIFIED"
