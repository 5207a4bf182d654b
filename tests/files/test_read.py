"""Bounded readers: what is refused, with its reason, and in what time."""

import json
import os
import socket
from contextlib import suppress

import pytest

from tfkit import StoreError
from tfkit.commands import parse_json, read_bytes, read_text
from tfkit.files import FileModel, FileRoot, child, read_model
from tfkit.files.read import MAX_STRING


class Names(FileModel):
    names: list[str]


@pytest.mark.skipif(not os.path.exists("/proc/kmsg"), reason="Linux alone has this file")
def test_a_regular_file_that_gives_nothing_and_does_not_end_is_refused():
    with suppress(OSError):
        while read_bytes("/proc/kmsg"):  # what the kernel said is read before it has nothing to say
            pass
    with pytest.raises(OSError, match=r"gives nothing now|ermission denied|not permitted"):
        read_bytes("/proc/kmsg")


def test_special_files_are_refused_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path, kind in (
            (tmp_path / "pipe", "named pipe"),
            (tmp_path / "socket", "socket"),
            (tmp_path, "directory"),
            ("/dev/zero", "device"),
        ):
            with pytest.raises(OSError, match=kind):
                read_bytes(path)


def test_a_link_is_followed_only_where_it_may_be(tmp_path):
    (tmp_path / "text").write_text("x")
    (tmp_path / "link").symlink_to("text")
    assert read_bytes(tmp_path / "link") == b"x"
    with pytest.raises(OSError, match="no link is followed"):
        read_bytes(tmp_path / "link", links=False)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    with pytest.raises(OSError, match="no file can have this name"):
        read_bytes(tmp_path / name)


def test_a_descriptor_that_the_user_opened_may_be_a_pipe():
    reading, writing = os.pipe()
    os.write(writing, b"text")
    os.close(writing)
    try:
        with pytest.raises(OSError, match="named pipe"):
            read_bytes(f"/dev/fd/{reading}")
        assert read_bytes(f"/dev/fd/{reading}", descriptors=True) == b"text"
    finally:
        os.close(reading)


def test_no_more_than_the_limit_is_read(tmp_path):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(8 << 40)
    with pytest.raises(OSError, match="more than 100 bytes"):
        read_bytes(tmp_path / "sparse", 100)


def test_text_that_is_not_utf8_is_refused_with_the_place(tmp_path):
    (tmp_path / "text").write_bytes(b"ab\xff")
    with pytest.raises(OSError, match="at byte 2"):
        read_text(tmp_path / "text")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested more than 40 deep"),
        ('{"a": [' * 30, "nested more than 40 deep"),
        (r'["\ud83d\ude00", {"a\uD800": 1}]', "lone surrogate: .a.uD800"),
        (r'["\ud800', "Invalid .* escape"),
        ("[NaN]", "NaN is not a number"),
        ("[-1e999]", "-1e999 is larger than any number of 64 bits"),
        ('{"a": 1, "a": 2}', '"a" is repeated'),
        ("{", "Expecting property name"),
        (b"\xff\xfe", "utf-8"),
    ],
)
def test_invalid_json_is_a_value_error_with_the_reason(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


def test_brackets_within_strings_do_not_nest():
    text = r'["[[[[\"[[[[", "]\\"]'
    assert parse_json(text, depth=1) == ['[[[["[[[[', "]\\"]


@pytest.mark.slow
@pytest.mark.parametrize("text", ['"' + '\\"' * 2_000_000, '["' * 2_000_000, '"' * 2_000_001])
def test_a_text_made_to_be_slow_takes_linear_time(text):
    with pytest.raises(ValueError):  # in quadratic time this would take hours
        parse_json(text)


def test_a_model_names_the_place_that_is_wrong(tmp_path):
    path = tmp_path / "names.json"
    path.write_text('{"names": ["a", 1]}')
    with pytest.raises(StoreError, match=r"names\.json: names\.1: .*string"):
        read_model(path, Names)
    path.write_text('{"names": [], "more": 1}')
    with pytest.raises(StoreError, match="more: Extra inputs are not permitted"):
        read_model(path, Names)
    path.write_text(f'{{"names": [], "{"x" * 900_000}": 1}}')
    with pytest.raises(StoreError, match=r"names.json: x{80}: Extra inputs are not permitted"):
        read_model(path, Names)
    path.write_text("[]")
    with pytest.raises(StoreError, match="the content: an object is expected"):
        read_model(path, Names)
    path.write_text('{"names": ["a"]}')
    assert read_model(path, Names).names == ["a"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "../a", "a\\b", "a\0b"])
def test_a_child_has_a_plain_name(tmp_path, name):
    with pytest.raises(ValueError, match="not the plain name"):
        child(tmp_path, name)


def test_a_child_has_a_name_that_a_file_can_have(tmp_path):
    assert child(tmp_path, "x" * 255).name == "x" * 255
    with pytest.raises(ValueError, match=r'^"x{80}"... has 900,000 characters, and the name of a file at most 255'):
        child(tmp_path, "x" * 900_000)
    with pytest.raises(ValueError, match="has 200 characters"):
        child(tmp_path, "\xe9" * 200)


def test_a_child_is_no_link(tmp_path):
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(ValueError, match="no link is followed"):
        child(tmp_path, "link")
    assert child(tmp_path, "plain") == tmp_path / "plain"


class _Member(FileModel):
    number: int


class _Content(FileModel):
    numbers: list[int] = []
    members: dict[str, _Member] = {}
    pairs: list[tuple[int, int]] = []


class _Names(FileRoot[dict[str, int]]):
    """Numbers by name."""


@pytest.mark.parametrize(
    ("model", "data", "place"),
    [
        (_Content, {"numbers": ["x"] * 1000}, "numbers.0: Input should be a valid integer"),
        (_Content, {"members": {f"m{n}": {"number": n, "more": 1} for n in range(1000)}}, "members.m0.more: Extra inputs"),
        (
            _Content,
            {"members": {"m": {f"k{n}": 1 for n in range(1000)}}},
            'members.m: 1,000 unknown keys: "k0", "k1", "k2" and',
        ),
        (_Content, {"pairs": [["x", "y"]] * 1000}, "pairs.0"),
        (_Names, {f"n{n}": "x" for n in range(1000)}, "n0: Input should be a valid integer"),
    ],
)
def test_many_wrong_values_are_one_error(tmp_path, model, data, place):
    """An error of Pydantic takes 1.5 kB: a million take more memory than the file."""
    (tmp_path / "a.json").write_text(json.dumps(data))
    with pytest.raises(StoreError) as caught:
        read_model(tmp_path / "a.json", model)
    (diagnostic,) = caught.value.diagnostics
    assert place in diagnostic.message


def test_a_string_of_json_has_a_limit():
    assert parse_json(f'["{"x" * MAX_STRING}"]') == ["x" * MAX_STRING]
    with pytest.raises(ValueError, match=f"a text has more than {MAX_STRING:,} characters"):
        parse_json(f'{{"a": "{"x" * MAX_STRING}\U0001f600"}}')
