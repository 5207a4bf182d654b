"""The laws of the slot on `acme.part`; `tfkit conformance --slot activation acme.part` draws more cases."""

from tfkit_conformance import check_part


def test_it_obeys_the_laws() -> None:
    report = check_part("activation", "acme.part", profile="quick")
    report.raise_for_failures()
    assert report.verdict == "CONFORMANT"
