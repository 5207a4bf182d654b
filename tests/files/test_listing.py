"""A listing of files: what it may name, what is compared first, and what may be removed."""

import hashlib
import json
import os

import pytest

from tfkit import StoreError
from tfkit.files import check_files, check_removable, file_record, foreign, remove_written


@pytest.fixture
def written(tmp_path):
    """A directory of two files, one in a folder, with their listing."""
    place = tmp_path / "written"
    (place / "shards").mkdir(parents=True)
    (place / "one").write_text("one")
    (place / "shards" / "two").write_text("two")
    return place, {name: file_record(place / name) for name in ("one", "shards/two")}


def check(written, **changes):
    place, files = written
    check_files(place / "listing.json", files | changes, folders=("shards",))


def test_files_as_they_were_written_pass(written):
    check(written)


@pytest.mark.parametrize("name", ["../one", "/etc/passwd", "shards/../one", "other/two", "shards/deep/two", "", ".", "a\0b"])
def test_a_name_elsewhere_is_refused(written, name):
    with pytest.raises(StoreError, match=r"TFK082.*names the file .*, which is elsewhere"):
        check(written, **{name: written[1]["one"]})


@pytest.mark.parametrize(
    "facts", [None, {}, [], {"bytes": -1, "sha256": "0" * 64}, {"bytes": 3, "sha256": "x"}, {"bytes": 3.0}]
)
def test_invalid_records_are_refused_with_their_place(written, facts):
    with pytest.raises(StoreError, match=r"TFK082.*listing\.json does not give the size and SHA-256 of one: one"):
        check(written, one=facts)


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder as a link", "named pipe", "directory", "missing"])
def test_paths_outside_of_the_directory_are_refused(written, kind):
    place, _ = written
    if kind == "folder as a link":
        (place / "shards").rename(place.parent / "elsewhere")
        (place / "shards").symlink_to(place.parent / "elsewhere")
    else:
        (place / "one").rename(place.parent / "one")
        if "link" in kind:
            (place / "one").symlink_to(place.parent / ("one" if kind == "link" else "nothing"))
        elif kind == "named pipe":
            os.mkfifo(place / "one")
        elif kind == "directory":
            (place / "one").mkdir()
    with pytest.raises(StoreError, match=r"TFK082.*(link|named pipe|directory|missing)"):
        check(written)


def test_a_wrong_size_is_reported_before_any_file_is_read(written):
    place, _ = written
    os.truncate(place / "shards" / "two", 8 << 40)  # sparse: hashing it would take hours
    (place / "one").write_text("ONE")
    with pytest.raises(StoreError, match=r"TFK082.*two has 8,796,093,022,208 bytes, but 3 bytes"):
        check(written)
    os.truncate(place / "shards" / "two", 3)
    with pytest.raises(StoreError, match=r"TFK082.*one has 3 bytes with SHA-256.*but 3 bytes with SHA-256"):
        check(written)


def everything(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_a_file_that_is_a_hole_is_not_read(tmp_path):
    """It would be read for hours. What a file system stores of a large file counts, not its zeros."""
    hole, beside, zeros = (tmp_path / name for name in ("hole", "beside", "zeros"))
    for path in (hole, beside):
        path.write_bytes(b"head" * 1000)
    os.truncate(hole, 1 << 40)
    with beside.open("r+b") as file:
        file.seek(1 << 31)
        file.write(b"tail" * 1000)
    for path in (hole, beside):
        with pytest.raises(OSError, match=r"bytes .* are stored, and the rest is a hole"):
            file_record(path)
    zeros.write_bytes(bytes(1 << 20))
    os.truncate(zeros, 3 << 20)
    assert file_record(zeros)["sha256"] == hashlib.sha256(bytes(3 << 20)).hexdigest()


def test_only_a_directory_of_written_files_is_removed(written):
    place, files = written
    remove_written(place, files)
    assert everything(place.parent) == []


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda place: (place / "thesis.txt").write_text("one"), "thesis.txt"),
        (lambda place: (place / "shards" / "thesis.txt").write_text("one"), "shards/thesis.txt"),
        (lambda place: (place / ".git").mkdir(), ".git"),
        (lambda place: (place / "away").symlink_to(place.parent), "away"),
        (lambda place: os.mkfifo(place / "pipe"), "pipe"),
        (lambda place: [(place / "one").unlink(), (place / "one").symlink_to("/etc/passwd")], "one"),
        (lambda place: [(place / "one").unlink(), (place / "one").mkdir()], "one"),
        (lambda place: [(place / "shards" / "two").unlink(), (place / "shards").rmdir(), (place / "shards").touch()], "shards"),
        (lambda place: [(place / "shards").rename(place / "x"), (place / "shards").symlink_to("x")], "shards, x"),
    ],
)
def test_anything_else_there_is_named_and_nothing_is_removed(written, make, named):
    place, files = written
    make(place)
    before = everything(place.parent)
    with pytest.raises(StoreError, match=rf"TFK080.*it holds {named}, which tfkit did not write there"):
        remove_written(place, files)
    assert everything(place.parent) == before


def test_a_link_to_a_directory_is_not_removed(written):
    place, files = written
    link = place.parent / "link"
    link.symlink_to(place)
    with pytest.raises(StoreError, match=r"TFK080.*is a link"):
        remove_written(link, files)
    assert everything(place)


def test_names_that_lead_elsewhere_remove_nothing_there(written):
    place, files = written
    outside = place.parent / "outside"
    outside.write_text("kept")
    remove_written(place, {*files, "../outside", str(outside), "shards/../../outside"})
    assert everything(place.parent) == ["outside"]


def test_many_foreign_files_are_counted(tmp_path):
    for number in range(9):
        (tmp_path / f"{number}.txt").touch()
    assert len(foreign(tmp_path, ())) == 9
    with pytest.raises(StoreError, match=r"it holds 0.txt, 1.txt, 2.txt and 6 more"):
        check_removable(tmp_path, ())


def test_facts_are_plain_data(written):
    assert json.loads(json.dumps(written[1])) == written[1]
