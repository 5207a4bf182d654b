"""Lines of text files, and what is refused about them, by line and column."""

import gzip

import pytest

from tfkit.data import lines, rows
from tfkit.errors import InputError


def test_a_line_ends_at_a_line_feed_only(tmp_path):
    (tmp_path / "a.txt").write_bytes("one\r\ntwo\u2028still two\x0cand\n\nlast".encode())
    assert list(lines(tmp_path / "a.txt")) == ["one", "two\u2028still two\x0cand", "", "last"]


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\n\ufefftwo\n".encode())
    assert list(lines(tmp_path / "a.txt")) == ["one", "\ufefftwo"]


def test_gzip_is_read_as_the_text_in_it(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress("ä\nb\n".encode()))
    assert list(lines(tmp_path / "a.gz")) == ["ä", "b"]


def told(*paths):
    with pytest.raises(InputError) as caught:
        list(rows(*paths))
    return str(caught.value)


def test_bad_text_is_told_with_its_place(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"fine\n\xc3\xa4 caf\xe9\n")
    assert f"{path}:2:6: TFK101 byte 0xe9 is no UTF-8; convert the file" in told(path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.gz", b"no gzip", "Not a gzipped file"),
        ("b.gz", gzip.compress(b"much text\n" * 999, mtime=0)[:-20], "Compressed file ended"),
        ("c.gz", gzip.compress(b"much text\n" * 999, mtime=0)[:-8] + b"xxxxxxxx", "CRC check failed"),
        ("empty.txt", b"", "there is no line to read"),
        ("long.txt", b"x" * (1 << 20) + b"yy", ":1:1: TFK101 the line is longer than 1,048,576 bytes"),
    ],
    ids=["no gzip", "cut short", "altered", "empty", "long"],
)
def test_damaged_files_are_told(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    assert message in told(tmp_path / name)


def test_a_missing_file_and_a_directory_are_told(tmp_path):
    assert "cannot be read: No such file" in told(tmp_path / "nowhere")
    assert "cannot be read: Is a directory" in told(tmp_path)


def test_files_of_different_lengths_are_told_with_both(tmp_path):
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("1\n2\n3\n4\n5\n")
    message = told(tmp_path / "a", tmp_path / "b")
    assert f"{tmp_path / 'a'} has 3, {tmp_path / 'b'} has 5; line 4 has no partner" in message
    (tmp_path / "empty").write_text("")
    assert f"{tmp_path / 'empty'} has 0, {tmp_path / 'a'} has 3; line 1" in told(tmp_path / "empty", tmp_path / "a")
