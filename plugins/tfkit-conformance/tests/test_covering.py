"""The generator of covering arrays: every pair that can meet is in a row, every other one is named with a reason."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from whole_models.covering import covering, pairs_in, pairs_of

pytestmark = pytest.mark.exhaustive


def factors_with(sizes):
    return {f"f{number}": [f"{number}{value}" for value in range(size)] for number, size in enumerate(sizes)}


def first_of_each(factors):
    return {name: values[0] for name, values in factors.items()}


def test_without_rules_it_is_about_as_small_as_the_two_largest_factors_allow():
    factors = factors_with([13, 9, 6, 5, 4, 3, 3, 3])
    array = covering(factors, first_of_each(factors), lambda row: "")
    assert not array.excluded
    assert {pair for row in array.rows for pair in pairs_in(row)} == set(pairs_of(factors))
    assert 13 * 9 <= len(array.rows) <= 1.05 * 13 * 9


@given(st.lists(st.integers(2, 5), min_size=2, max_size=5), st.data())
def test_forbidden_pairs_are_excluded_and_no_others(sizes, data):
    factors = factors_with(sizes)
    plain = first_of_each(factors)
    can_be = [pair for pair in pairs_of(factors) if not set(pair) & set(plain.items())]
    forbidden = set(data.draw(st.lists(st.sampled_from(can_be), max_size=8)))
    asked = []

    def refusal(row):
        asked.append(tuple(row.values()))
        return next((f"{pair} is forbidden" for pair in pairs_in(row) if pair in forbidden), "")

    array = covering(factors, plain, refusal)
    met = {pair for row in array.rows for pair in pairs_in(row)}
    assert set(array.excluded) == forbidden
    assert met == set(pairs_of(factors)) - forbidden
    assert all(reason == f"{pair} is forbidden" for pair, reason in array.excluded.items())
    assert len(asked) == len(set(asked)), "a rule is asked once about each row"
    assert array == covering(factors, plain, refusal), "no chance is involved"


def test_a_pair_that_needs_a_third_value_is_found():
    factors = factors_with([2, 2, 3])
    array = covering(factors, first_of_each(factors), lambda row: "" if row["f0"] == "00" or row["f2"] == "22" else "needs 22")
    assert set(array.excluded) == {(("f0", "01"), ("f2", "20")), (("f0", "01"), ("f2", "21"))}
    assert any(row == {"f0": "01", "f1": "11", "f2": "22"} for row in array.rows)


def test_a_plain_row_that_is_refused_is_an_error():
    factors = factors_with([2, 2])
    with pytest.raises(ValueError, match="never"):
        covering(factors, first_of_each(factors), lambda row: "never")
