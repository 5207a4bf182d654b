"""JSON is measured before it is parsed: how deep, how many values, how many escapes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from tfkit import StoreError
from tfkit.commands import parse_json
from tfkit.files import FileModel, read_model
from tfkit.files.read import MAX_ESCAPES, MAX_VALUES


class Two(FileModel):
    name: str
    size: int = 0


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(['\\"[', "\\", ",{"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a\\"[,', max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(VALUES)
def test_any_small_value_is_read_as_the_library_reads_it(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


def test_the_number_of_values_is_limited_wherever_they_are() -> None:
    whole = json.dumps([["a,b", {"c": 1}]] * (MAX_VALUES // 5))
    assert len(parse_json(whole)) == MAX_VALUES // 5
    for text in (whole[:-1] + ",1" * MAX_VALUES + "]", "[" + "[]," * MAX_VALUES + "[]]", "{" + '"a":1,' * MAX_VALUES):
        with pytest.raises(ValueError, match="it holds more than 100,000 values"):
            parse_json(text)
    assert parse_json(json.dumps(["," * 3 * MAX_VALUES])) == ["," * 3 * MAX_VALUES]  # no values, but one text
    assert len(parse_json("[" + "1," * 9 + "1]", values=10)) == 10


@pytest.mark.parametrize("escape", ["\\n", '\\"', "\\\\"])
def test_the_escapes_of_a_string_are_limited(escape: str) -> None:
    assert len(parse_json(f'["{escape * 1000}"]')[0]) == 1000
    with pytest.raises(ValueError, match="a string has more than 1,000,000 escapes"):
        parse_json(f'["{escape * (MAX_ESCAPES + 1)}"]')


def test_many_unknown_keys_are_one_error(tmp_path) -> None:
    file = tmp_path / "two.json"
    file.write_text(json.dumps({"name": "a", **{f"k{n}": n for n in range(5000)}}))
    with pytest.raises(StoreError, match=r'5,000 unknown keys: "k0", "k1", "k2" and 4,997 more') as error:
        read_model(file, Two)
    assert len(error.value.diagnostics) == 1
    file.write_text(json.dumps({"name": "a", "sise": 3}))
    with pytest.raises(StoreError, match="sise"):
        read_model(file, Two)


def test_an_integer_that_no_number_of_64_bits_reaches_is_refused_in_our_words() -> None:
    assert parse_json("1" + "0" * 307) == 10**307
    for digits in (309, 5_000):
        with pytest.raises(ValueError, match=f"^an integer has {digits:,} digits, and at most 308 are read$"):
            parse_json("9" * digits)
