"""What `write_whole` replaces, and what it leaves alone."""

import os
import re
import socket
import stat
from pathlib import Path

import pytest

from tfkit import StoreError
from tfkit.cli import main
from tfkit.files import check_writable, write_whole


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(path.name)


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


def _link(path: Path) -> None:
    path.with_name("other").write_text("of another user")
    path.symlink_to("other")


def _dangling(path: Path) -> None:
    path.symlink_to("nothing")


def _link_to_device(path: Path) -> None:
    path.symlink_to(os.devnull)


KINDS = {
    "a named pipe": _pipe, "a socket": _socket, "a device": _device, "a directory": Path.mkdir,
    "a link": _link, "a link to nothing": _dangling, "a link to a device": _link_to_device,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_special_files_are_not_replaced(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "out.json"
    KINDS[kind](place)
    before = place.lstat()
    message = f"it is {kind.split(' to ')[0]}, and a regular file is expected"
    with pytest.raises(StoreError, match=message):
        write_whole(place, "text")
    with pytest.raises(OSError, match=message):
        check_writable(place)
    assert main(["schema", "-o", "out.json"]) != 0
    assert message in capsys.readouterr().err
    # Checked before anything is measured, and the most harmful omission.
    for command in (["bench", "attention"], ["conformance", "eager"], ["verify", "no.yaml", "-o", "out.json"]):
        assert main(command if "-o" in command else [*command, "--json", "out.json"]) == 2
        assert message in capsys.readouterr().err
    after = place.lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({"out.json"} | ({"other"} if kind == "a link" else set()))


@pytest.mark.parametrize(
    "command",
    [
        ["schema", "-o", "out/"], ["eject", "specs/tiny-glu.yaml", "-o", "out/"],
        ["show", "specs/tiny-glu.yaml", "-o", "out.html/"],
        ["positions", "specs/tiny-glu.yaml", "-o", "out.html/"], ["look", "no", "--text", "a", "-o", "out.html/"],
        ["new", "spec", "tiny-glu", "-o", "out/"],
        ["compare", "no.yaml", "-o", "out.html/"], ["verify", "specs/tiny-glu.yaml", "-o", "out.md/"],
        ["bench", "cpu", "--json", "out/"], ["conformance", "eager", "--json", "out/"],
        ["claims", "scaled_scores", "-o", "out.html/"],
    ],
)  # fmt: skip
def test_a_name_that_ends_in_a_slash_is_no_file(command, tmp_path, monkeypatch, capsys):
    (tmp_path / "specs").symlink_to(Path("specs").absolute())
    monkeypatch.chdir(tmp_path)
    assert main(command) in (1, 2)
    assert re.search(r"TFK0(81|90) .*out(\.\w+)?/", capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["specs"]


@pytest.mark.parametrize("place", ["out/", "./out/"])
def test_a_text_with_a_slash_at_its_end_is_no_file_in_python(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=r"TFK081 .*it ends in `/`, which names a directory"):
        write_whole(place, "text")
    with pytest.raises(OSError, match="it ends in `/`"):
        check_writable(place)


def test_a_file_of_a_saved_model_is_not_replaced_by_an_output(tmp_path, capsys):
    assert main(["build", "specs/tiny-glu.yaml", "-o", str(tmp_path / "m")]) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}
    for name in before:
        assert main(["eject", str(tmp_path / "m"), "-o", str(tmp_path / "m" / name), "--force"]) == 2
        assert "cannot be written: it is a file of the saved model there; name another file" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()} == before


def test_a_regular_file_is_replaced_and_keeps_its_mode(tmp_path):
    place = tmp_path / "out.json"
    place.write_text("old")
    place.chmod(0o640)
    check_writable(place)
    write_whole(place, "new")
    assert place.read_text() == "new"
    assert place.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="a directory in which nobody can write")
def test_a_directory_that_takes_no_file_is_seen_before_the_work(capsys):
    assert main(["bench", "attention", "--json", "/proc/report.json"]) == 2
    assert "TFK081 /proc/report.json cannot be written" in capsys.readouterr().err
