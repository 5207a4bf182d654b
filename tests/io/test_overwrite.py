"""What is there is replaced when asked, and only what tfkit wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import tfkit
from saved_model import FILES, names
from tfkit import Model


def test_existing_files_are_not_replaced_without_force(
    model: Model, tmp_path: Path, logits_of: Callable[[Model], Tensor]
) -> None:
    tfkit.save(model, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(tfkit.StoreError, match=r"TFK080.*exists already"):
        tfkit.save(model, tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    tfkit.save(model, tmp_path / "out", overwrite=True)
    assert names(tmp_path) == {"out"}
    assert torch.equal(logits_of(tfkit.load(tmp_path / "out")), logits_of(model))


@pytest.mark.parametrize("what", ["file", "directory"])
def test_overwrite_replaces_a_saved_model_and_nothing_else(what: str, model: Model, tmp_path: Path) -> None:
    place = tmp_path / "thesis"
    if what == "file":
        place.write_text("chapter one")
    else:
        place.mkdir()
        (place / "chapter.txt").write_text("one")
    with pytest.raises(tfkit.StoreError, match=r"TFK080.*no saved model"):
        tfkit.save(model, place, overwrite=True)
    assert (place if what == "file" else place / "chapter.txt").read_text().endswith("one")
    assert names(tmp_path) == {"thesis"}


@pytest.mark.parametrize("listing", ["{}", "[]", '{"format": 1, "files": {}}', "", "{", "[" * 100_000])
def test_an_invalid_listing_is_refused(listing: str, model: Model, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "versions.json").write_text(listing)
    (tmp_path / "thesis" / "chapter.txt").write_text("one")
    with pytest.raises(tfkit.StoreError, match=r"TFK080.*thesis exists and is no saved model.*versions\.json"):
        tfkit.save(model, tmp_path / "thesis", overwrite=True)
    assert names(tmp_path / "thesis") == {"versions.json", "chapter.txt"}
    assert names(tmp_path) == {"thesis"}


@pytest.mark.parametrize("what", ["file", "hidden file", "directory", "link", "file in the place of another"])
def test_overwrite_keeps_foreign_files(what: str, model: Model, tmp_path: Path) -> None:
    place = tfkit.save(model, tmp_path / "out")
    name = {"hidden file": ".env", "file in the place of another": "plan.json"}.get(what, "notes")
    if what == "directory":
        (place / name).mkdir()
    elif what == "link":
        (place / name).symlink_to(tmp_path)
    elif what == "file in the place of another":
        (place / name).unlink()
        (place / name).mkdir()
    else:
        (place / name).write_text("mine")
    before = names(place)
    with pytest.raises(tfkit.StoreError, match=rf"TFK080.*out is not replaced: it holds {name}, which tfkit did not write"):
        tfkit.save(model, place, overwrite=True)
    assert names(place) == before
    assert names(tmp_path) == {"out"}


def test_overwrite_replaces_the_tokenisers_of_a_saved_model_too(model: Model, tmp_path: Path) -> None:
    tfkit.save(model, tmp_path / "out", texts={"tokeniser.json": "one"})
    tfkit.save(model, tmp_path / "out", overwrite=True)
    assert names(tmp_path / "out") == FILES


@pytest.mark.parametrize("target", ["model", "empty", "nowhere"])
def test_a_link_is_not_replaced(target: str, model: Model, tmp_path: Path) -> None:
    tfkit.save(model, tmp_path / "model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "out").symlink_to(target)
    with pytest.raises(tfkit.StoreError, match=r"TFK080.*out exists.*it is a link"):
        tfkit.save(model, tmp_path / "out", overwrite=True)
    assert names(tmp_path) == {"model", "empty", "out"}
    assert names(tmp_path / "model") == FILES


def test_files_that_appear_during_a_save_are_kept(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logits_of: Callable[[Model], Tensor]
) -> None:
    place = tfkit.save(model, tmp_path / "out")
    want, rename = logits_of(model), Path.rename

    def appear_and_rename(self: Path, target: Path) -> Path:
        if self == place:
            (place / "notes").write_text("mine")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", appear_and_rename)
    with pytest.raises(tfkit.StoreError, match=r"TFK080.*holds notes"):
        tfkit.save(model, place, overwrite=True)
    assert [path.read_text() for path in tmp_path.rglob("notes")] == ["mine"]
    assert torch.equal(logits_of(tfkit.load(place)), want)


def test_an_empty_directory_may_be_used_with_overwrite(model: Model, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    tfkit.save(model, tmp_path / "out", overwrite=True)
    assert names(tmp_path / "out") == FILES


@pytest.mark.parametrize("same_size", [False, True], ids=["another size", "another digest"])
def test_a_listing_does_not_make_a_file_of_somebody_else_removable(same_size: bool, model: Model, tmp_path: Path) -> None:
    place = tmp_path / "out"
    tfkit.save(model, place)
    (place / "thesis.tex").write_text("years of work")
    listing = json.loads((place / "versions.json").read_text())
    listing["files"]["thesis.tex"] = {"bytes": 13 if same_size else 1, "sha256": "0" * 64}
    (place / "versions.json").write_text(json.dumps(listing))
    with pytest.raises(tfkit.StoreError, match=r"holds thesis\.tex, which tfkit did not write there"):
        tfkit.save(model, place, overwrite=True)
    assert (place / "thesis.tex").read_text() == "years of work"


def test_a_listed_name_that_no_file_can_have_is_passed_over(model: Model, tmp_path: Path) -> None:
    tfkit.save(model, tmp_path / "out")
    listing = json.loads((tmp_path / "out" / "versions.json").read_text())
    listing["files"]["notes\0"] = {"bytes": 1, "sha256": "0" * 64}
    (tmp_path / "out" / "versions.json").write_text(json.dumps(listing))
    tfkit.save(model, tmp_path / "out", overwrite=True)
    assert names(tmp_path / "out") == FILES
