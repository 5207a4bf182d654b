"""Lines of text files, and what is refused about them, by line and column."""

import gzip
import io
import os
import random
import socket
from functools import partial

import pytest

from tfkit import InputError
from tfkit.data import groups, lines, lines_of, rows
from tfkit.data.text_lines import MAX_EMPTY
from tfkit.data.unpacked import FREE_BYTES


def test_a_line_ends_at_a_line_feed_only(tmp_path):
    (tmp_path / "a.txt").write_bytes("one\r\ntwo\u2028still two\x0cand\n\nlast".encode())
    assert list(lines(tmp_path / "a.txt")) == ["one", "two\u2028still two\x0cand", "", "last"]


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\n\ufefftwo\n".encode())
    assert list(lines(tmp_path / "a.txt")) == ["one", "\ufefftwo"]


def test_gzip_is_read_as_the_text_in_it(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress("ä\nb\n".encode()))
    assert list(lines(tmp_path / "a.gz")) == ["ä", "b"]


def describe_counts(*paths):
    with pytest.raises(InputError) as caught:
        list(rows(*paths))
    return str(caught.value)


def test_a_file_that_cannot_be_read_is_reported(tmp_path):
    with (
        open(tmp_path / "a.txt", "wb", buffering=0) as file,
        pytest.raises(InputError, match="TFK100 <stdin> cannot be read: "),
    ):
        list(lines_of(file, "<stdin>"))
    with open(os.open(tmp_path / "a.txt", os.O_WRONLY), "rb") as file, pytest.raises(InputError, match="Bad file descriptor"):
        list(lines_of(file, "<stdin>"))


def test_invalid_text_is_reported_with_its_location(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"fine\n\xc3\xa4 caf\xe9\n")
    assert f"{path}:2:6: TFK101 byte 0xe9 is no UTF-8; convert the file" in describe_counts(path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.gz", b"no gzip", "Not a gzipped file"),
        ("b.gz", gzip.compress(b"much text\n" * 999, mtime=0)[:-20], "Compressed file ended"),
        ("c.gz", gzip.compress(b"much text\n" * 999, mtime=0)[:-8] + b"xxxxxxxx", "CRC check failed"),
        ("empty.txt", b"", "there is no line to read"),
        ("utf16le.txt", "ab\nc\n".encode("utf-16-le"), ":1:2: TFK101 the file is UTF-16 or UTF-32, and not UTF-8; convert"),
        ("utf16be.txt", "ab\nc\n".encode("utf-16-be"), "`iconv -f utf-16be -t utf8 "),
        ("utf16.txt", "ab\nc\n".encode("utf-16"), "`iconv -f utf-16 -t utf8 "),
        ("utf32.txt", "ab\nc\n".encode("utf-32"), "`iconv -f utf-32 -t utf8 "),
        ("latin1.txt", b"fine\n" * 400 + b"\xff\xfe\n", ":401:1: TFK101 byte 0xff is no UTF-8; convert the file, for instance"),
        ("a b.txt", b"\xe9\n", "`iconv -f latin1 -t utf8 '"),
        ("nul.txt", b"fine\nthe d\0g\n", ":2:6: TFK101 byte 0x00 is no text"),
        ("long.txt", b"x" * (1 << 20) + b"yy", ":1:1: TFK101 the line is longer than 1,048,576 bytes"),
    ],
)
def test_damaged_files_are_reported(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    assert message in describe_counts(tmp_path / name)


@pytest.mark.parametrize(
    ("data", "fix"),
    [
        (b"fine\n\xff\xfe\n", "0xff is no UTF-8; convert the file, for instance with `iconv -f latin1 -t utf8 FILE`"),
        (b"the d\0g\n", "`tr -d '\\000' < FILE`"),
        ("ab".encode("utf-16"), "`iconv -f utf-16 -t utf8 FILE`"),
    ],
)  # fmt: skip
def test_the_advice_for_standard_input_is_a_command(data, fix):
    with pytest.raises(InputError) as raised:
        list(lines_of(io.BytesIO(data), "<stdin>"))
    assert fix in str(raised.value)


def test_a_missing_file_and_a_directory_are_reported(tmp_path):
    assert "cannot be read: No such file" in describe_counts(tmp_path / "nowhere")
    assert "cannot be read: it is a directory, and a regular file is expected" in describe_counts(tmp_path)


def test_files_of_different_lengths_are_reported_with_both_counts(tmp_path):
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("1\n2\n3\n4\n5\n")
    message = describe_counts(tmp_path / "a", tmp_path / "b")
    assert f"{tmp_path / 'a'} has 3, {tmp_path / 'b'} has 5; line 4 is missing in one file" in message
    (tmp_path / "empty").write_text("")
    assert f"{tmp_path / 'empty'} has 0, {tmp_path / 'a'} has 3; line 1" in describe_counts(tmp_path / "empty", tmp_path / "a")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_special_files_are_refused_before_they_are_read(tmp_path, suffix):
    os.mkfifo(tmp_path / f"pipe{suffix}")
    assert "it is a named pipe, and a regular file is expected" in describe_counts(tmp_path / f"pipe{suffix}")
    (tmp_path / f"device{suffix}").symlink_to("/dev/zero")
    assert "it is a device, and a regular file is expected" in describe_counts(tmp_path / f"device{suffix}")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / f"socket{suffix}"))
        assert "it is a socket, and a regular file is expected" in describe_counts(tmp_path / f"socket{suffix}")


def test_a_pipe_that_was_opened_already_is_read_where_once_is_enough(tmp_path):
    read, write = os.pipe()
    os.write(write, b"one\ntwo\n")
    os.close(write)
    name = f"/dev/fd/{read}"
    assert "it is a named pipe" in describe_counts(name)
    assert list(rows(name, descriptors=True)) == [("one",), ("two",)]
    os.close(read)
    assert "`/dev/stdin` names standard input" in describe_counts("-")


@pytest.mark.slow
def test_a_gzip_file_that_unpacks_to_far_more_than_text_does_is_refused_early(tmp_path):
    """A hundred such members would unpack to 1.6 GB: reading ends in the first."""
    member = gzip.compress(b"text\n" * (16 << 20 >> 2), mtime=0)
    (tmp_path / "bomb.gz").write_bytes(member * 100)
    message = describe_counts(tmp_path / "bomb.gz")
    assert "TFK100" in message
    assert "more than 100 times as many" in message
    line = int(message.split(":")[1])
    assert FREE_BYTES // 5 < line < 30_000_000 // 5


def test_members_of_a_gzip_file_are_read_on_and_very_many_are_refused(tmp_path):
    parts = [random.Random(1).randbytes(3000).hex().encode() + b"\n" for _ in range(5)]
    (tmp_path / "several.gz").write_bytes(b"".join(map(gzip.compress, parts)) + bytes(100) + gzip.compress(b"end\n") + bytes(5))
    assert list(lines(tmp_path / "several.gz")) == [*(part.decode().strip() for part in parts), "end"]
    whole = io.BytesIO()
    with gzip.GzipFile("x" * (8 << 20), "wb", fileobj=whole) as file:
        file.write(b"one\n")
    (tmp_path / "named.gz").write_bytes(whole.getvalue())
    assert list(lines(tmp_path / "named.gz")) == ["one"]
    (tmp_path / "many.gz").write_bytes(gzip.compress(b"", mtime=0) * 200_000)
    assert "bytes are 1,020 members, and gzip writes one for a file" in describe_counts(tmp_path / "many.gz")


def test_letters_on_lines_of_their_own_are_no_more_than_the_free_bytes(tmp_path):
    (tmp_path / "letters.gz").write_bytes(gzip.compress(b"a\n" * (FREE_BYTES + (8 << 20)), mtime=0))
    message = describe_counts(tmp_path / "letters.gz")
    assert "more than 100 times as many" in message
    assert FREE_BYTES // 2 < int(message.split(":")[1]) < FREE_BYTES


def test_repeated_text_is_read_as_long_as_it_is_small(tmp_path):
    text = b"the same sentence again\n" * 100_000
    (tmp_path / "same.gz").write_bytes(gzip.compress(text, mtime=0))
    assert sum(1 for _ in lines(tmp_path / "same.gz")) == 100_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.txt", "a.gz"])
def test_a_long_run_of_empty_lines_is_no_text(tmp_path, name):
    pack = (
        partial(gzip.compress, compresslevel=0) if name == "a.gz" else bytes
    )  # stored: packed well, it would be refused as such
    path = tmp_path / name
    path.write_bytes(pack(b"one\n" + b"\n" * MAX_EMPTY + b"two\n"))
    assert sum(1 for _ in lines(path)) == MAX_EMPTY + 2
    path.write_bytes(pack(b"one\n" + b"\n" * (MAX_EMPTY + 1)))
    assert f":{MAX_EMPTY + 2}:1: TFK103 more than {MAX_EMPTY:,} lines in a row have no text" in describe_counts(path)


def test_a_long_run_of_lines_without_text_ends_standard_input():
    empty = ["", " ", "\t"] * MAX_EMPTY
    for kept in (["one", *empty[:MAX_EMPTY], "two", ""], ["one"]):
        text = "".join(f"{line}\n" for line in kept).encode()
        assert list(lines_of(io.BytesIO(text), "<stdin>")) == kept
    read = lines_of(io.BytesIO("".join(f"{line}\n" for line in ["one", *empty[: MAX_EMPTY + 1], "two"]).encode()), "<stdin>")
    assert [next(read) for _ in range(MAX_EMPTY + 1)] == ["one", *empty[:MAX_EMPTY]]
    with pytest.raises(
        InputError, match=f"<stdin>:{MAX_EMPTY + 2}:1: TFK103 more than {MAX_EMPTY:,} lines in a row have no text"
    ):
        next(read)


def test_groups_come_before_the_error_that_ends_them():
    def numbers(count, failure):
        yield from range(count)
        if failure:
            raise failure

    assert list(groups(numbers(5, None), 2)) == [[0, 1], [2, 3], [4]]
    assert list(groups(numbers(4, None), 2)) == [[0, 1], [2, 3]]
    assert list(groups((), 3)) == []
    seen = groups(numbers(5, OSError("gone")), 3)
    assert [next(seen), next(seen)] == [[0, 1, 2], [3, 4]]
    with pytest.raises(OSError, match="gone"):
        next(seen)


def test_groups_of_long_texts_are_smaller():
    assert list(groups(["aa", "b", "cc", "dddddd", "e"], 2, 3)) == [["aa", "b"], ["cc"], ["dddddd"], ["e"]]
    rows = [(0, ("aa", "b")), (1, ("a", "")), (2, ("a",))]
    assert list(groups(rows, 9, 3)) == [rows[:1], rows[1:]]


def test_a_full_group_comes_before_the_next_item_is_read():
    lines = iter(["a", "b"])
    assert next(groups(lines, 1)) == ["a"]
    assert list(lines) == ["b"]
