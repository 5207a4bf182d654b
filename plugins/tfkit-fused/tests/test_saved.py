"""The file of what was measured: read back, keyed by environment, merged, and never an error."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
import tfkit_fused
from tfkit_fused.saved import Choice, Environment, Saved, place, read, source

HERE = Environment(device="NVIDIA H100 80GB HBM3", capability="9.0", triton="3.6.0", kernels="5d41402abc4b2a76")
CHOICE = Choice(tiles=(128, 64, 4, 3), milliseconds={"128x64, 4 warps, 3 stages": 0.25, "64x64, 4 warps, 3 stages": None})


def test_what_is_added_is_read_back_by_another_process(tmp_path):
    path = tmp_path / "not" / "there" / "fused.json"
    assert Saved(path, HERE).choices == {}
    assert Saved(path, HERE).add("forward d64", CHOICE) == CHOICE
    assert Saved(path, HERE).choices == {"forward d64": CHOICE}
    assert sorted(each.name for each in path.parent.iterdir()) == ["fused.json", "fused.json.lock"]


@pytest.mark.parametrize("field", ["device", "capability", "triton", "kernels"])
def test_what_was_measured_elsewhere_is_kept_and_not_used(field, tmp_path):
    path = tmp_path / "fused.json"
    other = HERE.model_copy(update={field: "another"})
    Saved(path, other).add("forward d64", CHOICE)
    assert Saved(path, HERE).choices == {}
    Saved(path, HERE).add("keys d64", CHOICE)
    assert read(path) == ({other: {"forward d64": CHOICE}, HERE: {"keys d64": CHOICE}}, "")


def test_the_first_that_is_written_counts_for_all(tmp_path):
    path = tmp_path / "fused.json"
    late = Saved(path, HERE)
    assert late.choices == {}
    Saved(path, HERE).add("forward d64", CHOICE)
    other = CHOICE.model_copy(update={"tiles": (64, 64, 4, 3)})
    assert late.add("forward d64", other) == CHOICE
    assert read(path)[0] == {HERE: {"forward d64": CHOICE}}


DAMAGED = {
    "empty": b"", "cut": b'{"sections": [{"environment"', "no object": b"[]", "bytes": b"\xff\xfe\x00", "deep": b"[" * 100_000,
    "other keys": b'{"sections": [], "more": 1}', "a text": b'{"sections": "none"}',
    "tiles": b'{"sections": [{"environment": %s, "choices": {"x": {"tiles": [1, 2], "milliseconds": {}}}}]}'
             % HERE.model_dump_json().encode(),
    "no number": b'{"sections": [{"environment": {"device": NaN}}]}',
}  # fmt: skip


def use(saved: Saved) -> None:
    """Reads, and writes twice."""
    assert saved.choices == {}
    assert [saved.add(name, CHOICE) for name in ("forward d64", "keys d64")] == [CHOICE, CHOICE]


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_told_once_not_used_and_replaced(name, tmp_path):
    path = tmp_path / "fused.json"
    path.write_bytes(DAMAGED[name])
    with pytest.warns(
        UserWarning, match=r"fused\.json is damaged and not used \(.+\): the next measurement replaces it"
    ) as warned:
        use(Saved(path, HERE))
    assert len(warned) == 1
    assert read(path) == ({HERE: {"forward d64": CHOICE, "keys d64": CHOICE}}, "")


def test_where_nothing_can_be_written_it_is_told_once(tmp_path):
    path = tmp_path / "file" / "fused.json"
    path.parent.write_text("no directory")
    with pytest.warns(UserWarning, match="could not be (read|written)") as warned:
        use(Saved(path, HERE))
    assert len(warned) == 2


def test_what_cannot_be_read_is_never_written_over(tmp_path, monkeypatch):
    """A file that belongs to another user, in a directory that does not."""
    path = tmp_path / "fused.json"
    Saved(path, HERE).add("forward d64", CHOICE)
    before = path.read_bytes()

    def refused(self):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(type(path), "read_bytes", refused)
        with pytest.warns(UserWarning, match="Permission denied"):
            use(Saved(path, HERE))
    assert path.read_bytes() == before


WRITER = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from tfkit_fused.saved import Choice, Environment, Saved
saved = Saved(Path({path!r}), Environment(**{here!r}))
sys.stdin.read()
for number in range(40):
    saved.add(f"{{sys.argv[1]}} {{number}}", Choice(tiles=(16, 16, 4, number), milliseconds={{}}))
assert "torch" not in sys.modules
"""


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    path = tmp_path / "fused.json"
    paths = [os.path.dirname(tfkit_fused.__path__[0]), *sys.path]
    code = WRITER.format(paths=paths, path=str(path), here=HERE.model_dump())
    writers = [subprocess.Popen([sys.executable, "-c", code, name], stdin=subprocess.PIPE) for name in "ab"]
    for each in writers:
        each.stdin.close()
    assert [each.wait() for each in writers] == [0, 0]
    found = read(path)[0][HERE]
    assert {name: choice.tiles[3] for name, choice in found.items()} == {f"{a} {n}": n for a in "ab" for n in range(40)}


def test_the_file_lies_where_it_is_told(monkeypatch, tmp_path):
    monkeypatch.delenv("TFKIT_FUSED_TUNED", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert place() == tmp_path / "tfkit" / "fused.json"
    monkeypatch.setenv("TFKIT_FUSED_TUNED", str(tmp_path / "mine.json"))
    assert place() == tmp_path / "mine.json"


def test_the_digest_is_that_of_what_is_compiled():
    assert len(source()) == 16
    assert source() == source.__wrapped__()


def test_nothing_is_told_where_all_is_well(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Saved(tmp_path / "fused.json", HERE).add("forward d64", CHOICE)
