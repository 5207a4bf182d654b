"""Directories that appear whole or not at all."""

from pathlib import Path

import pytest

from tfkit import StoreError
from tfkit.files import make_draft, make_folders, replace_directory


def written(directory, text):
    """A finished draft of a directory with one file."""
    draft = make_draft(directory)
    (draft / "file").write_text(text)
    return draft


def test_folders_are_made_at_any_depth(tmp_path):
    place = tmp_path.joinpath(*["a"] * 1500)
    make_folders(place)
    make_folders(place)
    assert place.is_dir()
    for folder in [place, *place.parents][:1500]:
        folder.rmdir()
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_folders(tmp_path / "file")


def test_a_draft_gets_the_name_and_the_previous_directory_is_removed(tmp_path):
    place = tmp_path / "place"
    replace_directory(written(place, "first"), place, ())
    replace_directory(written(place, "second"), place, {"file"})
    assert (place / "file").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


@pytest.mark.parametrize(
    ("inside", "name"), [("", "place/../place"), ("place", "../place"), ("place", "."), ("place", "../place/.")]
)
def test_a_path_through_the_directory_itself_leads_to_it_while_it_is_renamed(inside, name, tmp_path, monkeypatch):
    place = tmp_path / "place"
    replace_directory(written(place, "first"), place, ())
    monkeypatch.chdir(tmp_path / inside)
    replace_directory(written(Path(name), "second"), Path(name), {"file"})
    assert (place / "file").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_a_directory_with_other_files_is_not_replaced(tmp_path):
    place = tmp_path / "place"
    replace_directory(written(place, "first"), place, ())
    (place / "notes").write_text("mine")
    with pytest.raises(StoreError, match=r"TFK080 .*it holds notes"):
        replace_directory(written(place, "second"), place, {"file"})
    assert {path.name: path.read_text() for path in place.iterdir()} == {"file": "first", "notes": "mine"}


def test_the_previous_directory_returns_where_the_draft_cannot_be_renamed(tmp_path, monkeypatch):
    place, rename = tmp_path / "place", Path.rename
    replace_directory(written(place, "first"), place, ())

    def refuse(path, target):
        if path.suffix == ".draft":
            raise OSError("disk")
        return rename(path, target)

    draft = written(place, "second")
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="disk"):
        replace_directory(draft, place, {"file"})
    assert (place / "file").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([draft.name, "place"])


@pytest.mark.parametrize("name", ["a" * 255, "é" * 127])
def test_the_longest_name_of_a_directory_can_be_written_and_replaced(name, tmp_path):
    for text in ("first", "second"):
        replace_directory(written(tmp_path / name, text), tmp_path / name, {"file"})
    assert (tmp_path / name / "file").read_text() == "second"
