"""The texts of the checks as data, which `tfkit explain` prints."""

from dataclasses import asdict

from tfkit.cli.explain import all_checks, checks_named
from tfkit_conformance.check_texts import FILE
from tfkit_conformance.write_check_texts import checks_json, declared_checks


def test_the_file_is_that_of_the_checks():
    assert FILE.read_text(encoding="utf-8") == checks_json(), "run `python -m tfkit_conformance.write_check_texts`"
    assert [asdict(check) for check in all_checks()] == [{**check, "void": tuple(check["void"])} for check in declared_checks()]


def test_checks_are_found_by_name_number_and_rule_in_any_case():
    assert {check.name for check in checks_named("r19")} >= {"R19 causal_prefix", "causal independence"}
    for words in ("R19 causal_prefix", "CAUSAL_PREFIX"):
        assert [check.name for check in checks_named(words)] == ["R19 causal_prefix"]
    assert {check.name for check in checks_named("a5")} >= {"R29 fully_masked_rows"}
    assert checks_named("") == checks_named("nothing") == []
