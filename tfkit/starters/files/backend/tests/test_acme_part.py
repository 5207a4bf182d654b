"""The conformance suite of tfkit on `acme.part`; `tfkit conformance acme.part` runs more of it."""

from tfkit_conformance import check_backend


def test_it_is_conformant() -> None:
    report = check_backend("acme.part", profile="quick", dtypes=["float32"])
    report.raise_for_failures()
    assert report.verdict == "CONFORMANT"
