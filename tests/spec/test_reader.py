"""Text to marked values: what YAML 1.2 and JSON mean, and every way in which a text can be no spec."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tfkit import Catalogue, Diagnostic, SpecError, load_spec, parse_spec
from tfkit.spec.located import Diagnostics, Located, plain
from tfkit.spec.reader import MAX_BYTES, read_text, read_value


def value_of(text: str) -> object:
    diagnostics = Diagnostics()
    node = read_value(text, "x", diagnostics)
    diagnostics.stop()
    return None if node is None else plain(node)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5), ("1.", 1.0), (".5", 0.5), ("-0", 0), ("010", 10), ("0o10", 8), ("0x1F", 31), ("+3", 3),
        ("63_082_496", "63_082_496"), ("1:30", "1:30"), ("yes", "yes"), ("on", "on"), ("True", True), ("FALSE", False),
        ("~", None), ("null", None), ("", None), ("Null", None), ("'1'", "1"), ('"true"', "true"), ("2026-01-01", "2026-01-01"),
        ("=", "="), ("0x", "0x"), ("1e", "1e"), ("९", "९"), ("-", None), ("9223372036854775807", 2**63 - 1),
    ],
)  # fmt: skip
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    found = value_of(f"[{text}]" if text not in ("", "-") else text)
    assert found == ([value] if text not in ("", "-") else (None if text == "" else [None]))
    if text not in ("", "-"):
        assert isinstance(found, list)
        assert type(found[0]) is type(value)


def first_fault(text: str | bytes) -> Diagnostic:
    """The first error of a text that is no spec."""
    diagnostics = Diagnostics()
    with contextlib.suppress(SpecError):
        read_text(text, "a.yaml", diagnostics)
    return diagnostics.error().diagnostics[0]


BAD = {
    "unclosed": ("a: [1,\n", "TFK002", 2, 1),
    "tab": ("a:\n\tb: 1\n", "TFK002", 2, 1),
    "colon": ("a: 1\nb: c: d\n", "TFK002", 2, 5),
    "quote": ("a: 'b\n", "TFK002", 2, 1),
    "duplicate": ("a: 1\nb: {c: 1, c: 2}\n", "TFK004", 2, 11),
    "duplicate, quoted": ("a: 1\n'a': 2\n", "TFK004", 2, 1),
    "anchor": ("a: &x 1\n", "TFK005", 1, 4),
    "alias": ("a: 1\nb: *x\n", "TFK005", 2, 4),
    "tag": ("a: !!python/object/apply:os.system ['true']\n", "TFK005", 1, 4),
    "bare tag": ("a: ! 1\n", "TFK005", 1, 4),
    "merge key": ("a: 1\n<<: {b: 1}\n", "TFK005", 2, 1),
    "list as key": ("? [a]\n: 1\n", "TFK006", 1, 3),
    "alias as key": ("a: 1\n*x : 2\n", "TFK005", 2, 1),
    "empty": ("", "TFK007", 1, 1),
    "comment only": ("# nothing\n", "TFK007", 1, 1),
    "list": ("- a\n", "TFK007", 1, 1),
    "scalar": ("hello\n", "TFK007", 1, 1),
    "two documents": ("a: 1\n---\nb: 2\n", "TFK007", 2, 1),
    "infinity": ("a: [1, -.inf]\n", "TFK008", 1, 8),
    "not a number": ("a: .NaN\n", "TFK008", 1, 4),
    "overflow": ("a: 1e999\n", "TFK008", 1, 4),
    "beyond float32": ("a: -3.5e38\n", "TFK008", 1, 4),
    "huge": ("a: 9223372036854775808\n", "TFK008", 1, 4),
    "huge hex": ("a: 0xfffffffffffffffffffff\n", "TFK008", 1, 4),
    "NUL": ("a: b\nc: \0d\n", "TFK003", 2, 4),
    "bell": ("a: é\x07\n", "TFK003", 1, 5),
    "second byte order mark": ("a: é\ufeff\n", "TFK003", 1, 5),
    "line separator": ("a: 'x\u2028y'\n", "TFK003", 1, 6),
    "lone surrogate": ("a: \ud800\n", "TFK003", 1, 4),
    "lone surrogate in JSON": ('{"a": "\\ud83d"}', "TFK002", 1, 10),
    "deep": ("[" * 50, "TFK001", 1, 41),
    "deep mappings": ("{a: " * 50, "TFK001", 1, 161),
    "YAML 1.3": ("%YAML 1.3\n---\na: 1\n", "TFK005", 1, 1),
}


@pytest.mark.parametrize("row", BAD.values(), ids=BAD)
def test_bad_text_is_located(row: tuple[str, str, int, int]) -> None:
    text, code, line, column = row
    diagnostic = first_fault(text)
    assert diagnostic.location
    assert (diagnostic.code, diagnostic.location.file, diagnostic.location.line, diagnostic.location.column) == (
        code,
        "a.yaml",
        line,
        column,
    ), str(diagnostic)


def test_a_tab_is_refused_with_a_fix() -> None:
    with pytest.raises(SpecError, match="spaces, not tabs"):
        read_text("a:\n\tb: 1\n", "a.yaml", Diagnostics())


GLUED = [
    ("a: 1\ndropout:0.1\nb: 2\n", 2, 1),
    ("d:\n  e: 1\n  dropout:0.1\n  f: 2\n", 3, 3),
    ("a: 1\ndropout:0.1", 2, 1),
    ("tfkit:1\nname: x\n", 1, 1),
    ("a: {b: 1, dropout:0.1}\n", 1, 11),
    ("a:\n  source:{kind: tokens}\n", 2, 3),
    ("a: 1\noutputs:[logits]\n", 2, 1),
]


@pytest.mark.parametrize(("text", "line", "column"), GLUED)
def test_a_key_without_a_space_after_its_colon_is_located(text: str, line: int, column: int) -> None:
    diagnostic = first_fault(text)
    assert diagnostic.location
    assert (diagnostic.code, diagnostic.location.line, diagnostic.location.column, diagnostic.fix) == (
        "TFK002",
        line,
        column,
        "write a space after the colon",
    )
    assert "has no space after its colon" in diagnostic.message


def test_a_quoted_key_may_hold_a_colon() -> None:
    assert value_of("{'a:b': 1, c: http://x}") == {"a:b": 1, "c": "http://x"}


JSON = (
    '{\n\t"tfkit": 1,\n\t"name": "x",\n\t"nodes": {"t": {"kind": "tokens", "d_model": 8, "vocab_size": 9}},\n'
    '\t"outputs": ["t"]\n}\n'
)
NO_JSON = {
    "trailing comma of a list": ('["t"]', '["t",]', "TFK002", 5, 17, "a comma before `]` is not JSON"),
    "trailing comma of a mapping": ('["t"]\n', '["t"],\n', "TFK002", 5, 18, "a comma before `}` is not JSON"),
    "comment of YAML": ('"x",', '"x", # why', "TFK002", 3, 15, "a comment is not JSON"),
    "comment of JavaScript": ('"name"', '// why\n"name"', "TFK002", 3, 2, "a comment is not JSON"),
    "single quotes": ('"x"', "'x'", "TFK002", 3, 10, "single quotes are not JSON"),
    "single quotes of a key": ('"name"', "'name'", "TFK002", 3, 2, "single quotes are not JSON"),
    "key without quotes": ('"name"', "name", "TFK002", 3, 2, 'write "name"'),
    "text without quotes": ('"x"', "x", "TFK002", 3, 10, "`x` is not a JSON value"),
    "truth of Python": ("8", "True", "TFK002", 4, 47, "`True` is not a JSON value"),
    "not a number": ("8", "NaN", "TFK008", 4, 47, "`NaN` is not a number of JSON"),
    "infinity": ("8", "-Infinity", "TFK008", 4, 47, "`-Infinity` is not"),
    "octal": ("8", "08", "TFK002", 4, 48, "this is not JSON"),
    "text behind it": ("}\n", "} x", "TFK002", 6, 3, "this is not JSON"),
    "deep": ("8", "[" * 100_000 + "]" * 100_000, "TFK001", 4, 84, "nested deeper"),
    "huge": ("8", "9" * 5000, "TFK008", 4, 47, "too large"),
}


@pytest.mark.parametrize("row", NO_JSON.values(), ids=NO_JSON)
def test_a_file_named_json_is_json(row: tuple[str, str, str, int, int, str], tmp_path: Path, catalogue: Catalogue) -> None:
    old, new, code, line, column, piece = row
    path = tmp_path / "spec.json"
    path.write_text(JSON)
    assert load_spec(path, catalogue).name == "x"
    index = JSON.rindex(old)
    path.write_text(JSON[:index] + new + JSON[index + len(old) :])
    with pytest.raises(SpecError) as error:
        load_spec(path, catalogue)
    diagnostic = error.value.diagnostics[0]
    assert diagnostic.location
    assert (diagnostic.code, diagnostic.location.line, diagnostic.location.column) == (code, line, column), str(diagnostic)
    assert piece in f"{diagnostic.message}; {diagnostic.fix}"


def test_a_word_inside_a_text_of_json_is_no_number(tmp_path: Path, catalogue: Catalogue) -> None:
    path = tmp_path / "spec.json"
    path.write_text(JSON.replace('"x"', '"NaN, -Infinity, \\"NaN"'))
    assert load_spec(path, catalogue).name == 'NaN, -Infinity, "NaN'


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (b"a: \xff\n", "TFK003", "byte 0xff is not UTF-8"),
        ("a: ü\n".encode("latin-1"), "TFK003", "UTF-8"),
        ("a: 1\n".encode("utf-16"), "TFK003", "UTF-16"),
        ("a: 1\n".encode("utf-32"), "TFK003", "the file is UTF-32"),
        ("\ufeffa: 1\n".encode("utf-32-be"), "TFK003", "the file is UTF-32"),
        ("a: \udcff\n", "TFK003", "half of a pair of surrogates; decode the bytes of the text as UTF-8"),
        (b"a: '" + b"x" * MAX_BYTES + b"'", "TFK001", "larger than"),
        (b"a: [" + b"1," * 30_000 + b"1]", "TFK001", "more than 20000 values"),
        (b"".join(b"k%d: 1\n" % number for number in range(2000)), "TFK001", "more than 1000 keys"),
        (b"a: " + b"9" * 5000, "TFK008", "too large"),
    ],
)
def test_bad_bytes_are_refused(data: bytes | str, code: str, message: str) -> None:
    diagnostic = first_fault(data)
    assert diagnostic.code == code
    assert message in str(diagnostic)


def test_an_error_in_bytes_has_its_column_in_characters() -> None:
    with pytest.raises(SpecError) as error:
        read_text("a: 1\nb: 한글 ".encode() + b"\xfe", "a.yaml", Diagnostics())
    location = error.value.diagnostics[0].location
    assert location
    assert (location.line, location.column) == (2, 7)


def test_columns_count_characters_not_bytes() -> None:
    root = read_text("한글: {é: [ü, 😀, x]}\n", "a.yaml", Diagnostics())
    last = root.mapping["한글"].mapping["é"].items[2]
    assert (last.location.line, last.location.column) == (1, 16)
    assert (last.path, last.text) == ("한글.é.2", "x")


def test_byte_order_mark_and_windows_lines_are_read() -> None:
    root = read_text(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", "a.yaml", Diagnostics())
    assert plain(root) == {"a": 1, "b": 2}
    assert (root.mapping["b"].location.line, root.mapping["b"].location.column) == (2, 4)


def test_keys_are_text_whatever_they_look_like() -> None:
    assert value_of("{1: a, true: b, null: c, 1.5: d, on: e}") == {"1": "a", "true": "b", "null": "c", "1.5": "d", "on": "e"}


def test_source_text_of_a_scalar_is_kept() -> None:
    node = read_text("a: 010\n", "a.yaml", Diagnostics()).mapping["a"]
    assert (node.value, node.text, node.shown) == (10, "010", "`010` is written")


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn", "Zl", "Zp"], exclude_characters="\ufeff"), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("aéx😀", min_size=1, max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(JSONS, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_json_is_read_as_json_reads_it(value: object, indent: int | str | None, ascii_only: bool) -> None:
    text = json.dumps({"a": value}, indent=indent, ensure_ascii=ascii_only)
    assert value_of(text) == {"a": value}


def test_json_pairs_of_surrogates_are_one_character() -> None:
    assert value_of('{"a": "x\\ud83d\\ude00", "b": "\\\\ud83d"}') == {"a": "x😀", "b": "\\ud83d"}


def test_json_spec_loads(tmp_path: Path, catalogue: Catalogue) -> None:
    node = {"kind": "tokens", "d_model": 8, "vocab_size": 9, "scale": 1e-05}
    data = {"tfkit": 1, "name": "j", "nodes": {"t": node}, "outputs": ["t"]}
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(data, indent="\t"))
    assert load_spec(path, catalogue).nodes["t"].options.scale == 1e-05


def errors_of_path(path: str | Path, catalogue: Catalogue) -> tuple[Diagnostic, ...]:
    with pytest.raises(SpecError) as error:
        load_spec(path, catalogue)
    return error.value.diagnostics


def test_files_that_cannot_be_read(tmp_path: Path, catalogue: Catalogue) -> None:
    assert [diagnostic.code for diagnostic in errors_of_path(tmp_path, catalogue)] == ["TFK000"]
    [missing] = errors_of_path(tmp_path / "none.yaml", catalogue)
    assert (missing.code, missing.location and missing.location.file) == ("TFK000", str(tmp_path / "none.yaml"))
    assert "no such file" in missing.message
    assert [diagnostic.code for diagnostic in errors_of_path("a\0b", catalogue)] == ["TFK000"]
    (tmp_path / "empty.yaml").touch()
    assert [diagnostic.code for diagnostic in errors_of_path(tmp_path / "empty.yaml", catalogue)] == ["TFK007"]
    if os.geteuid():
        (tmp_path / "empty.yaml").chmod(0)
        assert [diagnostic.code for diagnostic in errors_of_path(tmp_path / "empty.yaml", catalogue)] == ["TFK000"]


@pytest.mark.parametrize("kind", ["device", "named pipe"])
def test_special_files_are_refused_without_blocking(kind: str, tmp_path: Path, catalogue: Catalogue) -> None:
    os.mkfifo(tmp_path / "pipe")
    [diagnostic] = errors_of_path("/dev/zero" if kind == "device" else tmp_path / "pipe", catalogue)
    assert (diagnostic.code, diagnostic.message) == (
        "TFK000",
        f"the file cannot be read: it is a {kind}, and a regular file is expected",
    )


def test_of_a_large_file_no_more_is_read_than_a_spec_may_have(tmp_path: Path, catalogue: Catalogue) -> None:
    (tmp_path / "large.yaml").touch()
    os.truncate(tmp_path / "large.yaml", 8 << 40)
    assert [diagnostic.code for diagnostic in errors_of_path(tmp_path / "large.yaml", catalogue)] == ["TFK001"]


def test_minor_errors_do_not_hide_each_other(text: str, errors_of: Callable[..., list[Diagnostic]]) -> None:
    bad = text.replace("d_model: 64", "d_model: &w 64").replace("pad_id: 0", "pad_id: 0\n  pad_id: 1").replace("1.0e-5", ".inf")
    assert [diagnostic.code for diagnostic in errors_of(bad)] == ["TFK005", "TFK004", "TFK008"]


def test_alias_is_one_error(text: str, errors_of: Callable[..., list[Diagnostic]]) -> None:
    assert [diagnostic.code for diagnostic in errors_of(text.replace("{num_heads: 4}", "*heads"))] == ["TFK005"]


def test_marks_of_nested_values() -> None:
    root: Located = read_text("a:\n  - b: {c: 1}\n", "a.yaml", Diagnostics())
    inner = root.mapping["a"].items[0].mapping["b"].mapping["c"]
    assert (inner.path, inner.location.line, inner.location.column) == ("a.0.b.c", 2, 12)
    assert inner.key
    assert (inner.key.line, inner.key.column) == (2, 9)


def test_text_that_is_not_text_raises_no_traceback(catalogue: Catalogue) -> None:
    with pytest.raises(SpecError, match="TFK003"):
        parse_spec("tfkit: 1\nname: \udcff\n", catalogue)
