"""Directives of YAML are no part of the language, and are refused before they are parsed."""

import pytest

import tfkit


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("%YAML 1.2\n---\ntfkit: 1\n", "1:1"),
        ("# a comment\n\n%TAG ! tag:x,2026:\n---\ntfkit: 1\n", "3:1"),
        ("%TAG !a! tag:x\n" * 60_000, "1:1"),
        ("tfkit: 1\n... # end\n%TAG !a! tag:x\n---\ntfkit: 1\n", "3:1"),
        ("\n" * 300_000 + "%A", "300001:1"),
    ],
)
def test_a_directive_is_refused_where_it_stands(text, place):
    with pytest.raises(tfkit.SpecError, match=rf"<text>:{place}: TFK005 the directive `%(YAML|TAG|A)` is no part") as error:
        tfkit.parse_spec(text)
    assert len(error.value.diagnostics) == 1


def test_a_percent_sign_elsewhere_is_text():
    with pytest.raises(tfkit.SpecError, match="TFK") as error:
        tfkit.parse_spec("tfkit: 1\nname: x\ndescription: |\n  %TAG\n  100 %\nsise: '\n\n  %x'\n")
    assert "directive" not in str(error.value)
