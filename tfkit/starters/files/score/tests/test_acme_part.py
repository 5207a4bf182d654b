"""The laws of the slot on `acme.part`, and proofs about a small model with it; `tfkit verify model.yaml` prints them."""

from pathlib import Path

from tfkit_conformance import check_part, verify

MODEL = Path(__file__).parents[1] / "model.yaml"


def test_it_obeys_the_laws() -> None:
    report = check_part("score", "acme.part", profile="quick")
    report.raise_for_failures()
    assert report.verdict == "CONFORMANT"


def test_a_model_with_it_is_verified() -> None:
    report = verify(MODEL, backends=["eager"])
    assert [row.message for row in report.rows if row.status == "failed"] == []
    assert report.verdict == "VERIFIED"
