"""Every command against every kind of hostile input that it may be given to read.

Commands and their arguments come from click, members from directories that tfkit wrote, and damages from the
good content of each file: a new command, file or member is covered without a change here. A command may succeed where the
damage does no harm. Otherwise it ends with exit code 1 or 2 and a located message, within 5 s of processor time and 500
MB, changes nothing outside its output, and says neither that this is a bug of tfkit nor a traceback.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from itertools import count, product
from pathlib import Path

import pytest

from command_line import SMALL
from hostile.damage import NAMES, Damage, contents, damages, large, not_regular
from hostile.harness import CPU_SECONDS, Ended, Runner, snapshot
from hostile.inputs import (
    Reads,
    Writes,
    all_commands,
    looks_like_path,
    parameters,
    read_arguments,
    written_arguments,
)
from tfkit.cli.options import InputPath, OutputPath
from tiers import EVERY_CASE

ARGUMENTS, WRITTEN = list(read_arguments()), list(written_arguments())
COMMANDS = list(dict.fromkeys(reads.command for reads in ARGUMENTS))
VICTIM = "victim"
EXTRA = ("extra", ".step-1.abc.draft", ".step-1.abc.old", "checkpoints/.step-1.abc.old", "models/.step-1.abc.draft")
"""Names that tfkit did not write into a directory, but might have."""
STREAM_SHARE, NAME_SHARE, LARGE_SHARE = (1, 1, 1) if EVERY_CASE else (2, 3, 3)
"""One in so many contents of standard input is run for each command, one in so many names for each place to write, and one in
so many large contents for each file. Which ones moves on from command to command; related ones stand beside each other."""
ALWAYS_REFUSED = {
    "missing", "directory", "named pipe", "socket", "link to a device", "link to nothing", "link to itself", "sparse", "empty",
    "zeros", "random", "not UTF-8", "UTF-16", "a long line", "deep lists", "deep objects", "deep blocks", "aliases", "a tag",
    "only null", "only []", "only 3", "only true", "only NaN", "behind garbage", "gzip of newlines", "gzip cut off",
}  # fmt: skip
"""Damages that no spec, recipe, table or report survives."""


def test_every_path_argument_is_declared_as_read_or_written() -> None:
    for command in all_commands():
        for each in parameters(command):
            if looks_like_path(each):
                assert isinstance(each.type, (InputPath, OutputPath)), (command, each.name)


class Case:
    """A folder with copies of the good inputs and, beside it, another user's files."""

    def __init__(self, good: Path, folder: Path, runner: Runner) -> None:
        self.good, self.folder, self.runner, self.beside = good, folder, runner, list[str]()
        self.inputs, self.victim = folder / "inputs", folder / VICTIM
        shutil.copytree(good, self.inputs)
        self.victim.mkdir()
        (self.victim / "file.json").write_text('{"somebody": "else"}')
        (self.victim / "step-1").mkdir()
        (self.victim / "step-1" / "model.safetensors").write_text("weights of another user")
        self.wrong: list[str] = []
        self.cases = 0

    def run(self, words: list[str], stdin: Path | None = None) -> Ended:
        """Run a command on good inputs, which are put back where it changes them."""
        before = snapshot(self.inputs)
        ended = self.runner.run(words, self.inputs, stdin)
        remove(self.inputs / "new")
        if snapshot(self.inputs) != before:
            remove(self.inputs)
            shutil.copytree(self.good, self.inputs)
        return ended

    def usual(self, reads: Reads) -> tuple[str, str]:
        """A good value of an argument with which its command succeeds, and what it prints. Keeps what is written beside it."""
        tried = []
        for value, self.beside in product(reads.good, reads.besides()):
            ended = self.run(reads.words(value, self.beside))
            # `verify` and a replay of conformance may find something wrong, or leave something out.
            if ended.code == 0 or (reads.command in ("conformance", "verify") and ended.code in (1, 3)):
                return value, ended.out
            tried.append((value, self.beside, ended))
        raise AssertionError(f"{reads} succeeds with none of {tried}")

    def note(self, what: str, wrong: str) -> None:
        """Count a case, and keep what is wrong with it."""
        self.cases += 1
        if wrong:
            self.wrong.append(f"{what}: {wrong}")

    def report(self) -> None:
        print(f"{self.cases} cases")
        assert not self.wrong, f"{len(self.wrong)} of {self.cases} cases:\n" + "\n".join(self.wrong[:40])

    def evaluate(
        self,
        reads: Reads,
        value: str,
        what: str,
        refused: bool,
        output: Path | None = None,
        stdin: Path | None = None,
        seconds: int = CPU_SECONDS,
    ) -> None:
        """Run the command on this value, and note what is wrong with how it ended."""
        before = snapshot(self.folder, output)
        ended = self.runner.run(reads.words(value, self.beside), self.inputs, stdin, seconds)
        new = self.inputs / "new"
        if new.is_symlink() or new.is_file():
            new.unlink()
        shutil.rmtree(new, ignore_errors=True)
        for path in self.inputs.rglob("shortlist.safetensors"):  # a command writes it beside the model
            path.unlink()
        after = snapshot(self.folder, output)
        self.note(f"{named(reads)}: {what}", ended.wrong(refused))
        if before != after:
            changed = sorted(set(before.items()) ^ set(after.items()))[:4]
            self.wrong.append(f"{named(reads)}: {what}: changed {changed}")

    def unread(self, reads: Reads, name: str) -> set[Path]:
        """The files of a directory that the command does not read: a successful run leaves their times of access alone.

        No file where the file system keeps no times of access, and with `TFKIT_CASES=all`."""
        folder, probe = self.inputs / name, self.folder / "probe"
        probe.write_text("x")
        files = [probe, *(folder / member for member in members(folder) if (folder / member).is_file())]
        for path in files:
            os.utime(path, ns=(0, path.stat().st_mtime_ns))
        probe.read_text()
        kept = probe.stat().st_atime_ns > 0 and not EVERY_CASE
        self.evaluate(reads, name, "as it was", False, folder)
        found = {path.relative_to(folder) for path in files[1:] if path.exists() and not path.stat().st_atime_ns}
        probe.unlink()
        self.restore(name)
        assert not kept or len(found) < len(files) - 1, f"{named(reads)} reads no file of {name}"
        return found if kept else set()

    def restore(self, name: str) -> None:
        """Put back a good input."""
        target = self.inputs / name
        remove(target)
        if (self.good / name).is_dir():
            shutil.copytree(self.good / name, target)
        else:
            shutil.copy2(self.good / name, target)


def share_of(reads: Reads, value: Path) -> int:
    """One case in so many is run; `TFKIT_CASES=all` runs every one, which takes hours.

    Arguments with the same good values go through the same reader: the first of them gets the larger share. Directories have
    many files.
    """
    first = reads == next(each for each in ARGUMENTS if each.good == reads.good)
    if value.is_file():
        return 6 if first else 30
    return 45 if first else 135


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def members(folder: Path) -> list[Path]:
    """The files of a directory that tfkit wrote, and its folders."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


def attack(case: Case, reads: Reads, name: str, share: int) -> None:
    """The argument itself damaged, then names that are hostile, then every member of a directory.

    Only one case in `share` is run. Which ones moves on from member to member and from command to command, so that together
    they meet every damage of every kind of file.
    """
    turn = count(ARGUMENTS.index(reads))

    def chosen(found: list[tuple[str, Damage]]) -> list[tuple[str, Damage]]:
        return [each for each in found if next(turn) % share == 0]

    target = case.inputs / name
    if target.is_file():
        for what, damage in chosen(damages(target.read_bytes(), target.suffix, case.victim)):
            remove(target)
            damage(target)
            # Of other damages some leave a file that is right, or a text like any other.
            refused = target.suffix in (".yaml", ".json") and what in ALWAYS_REFUSED
            case.evaluate(reads, name, what, refused)
        case.restore(name)
    for hostile in NAMES:
        if next(turn) % share == 0:
            case.evaluate(reads, hostile, f"name {hostile[:20]!r}", refused=True)
    if not target.is_dir():
        return
    output = target if reads.name == "resume" else None
    unread = case.unread(reads, name)
    for member in members(case.good / name):
        whole = case.good / name / member
        data = whole.read_bytes() if whole.is_file() else b""
        spot = target / member
        for what, damage in chosen(damages(data, member.suffix, case.victim, member not in unread)):
            remove(spot)
            damage(spot)
            case.evaluate(reads, name, f"{member}: {what}", False, output)
            case.restore(name if output else str(Path(name) / member))
    for what, link in (("a link to nothing", "nothing"), ("a link to another user's file", str(case.victim)), ("a file", "")):
        for extra in EXTRA:
            spot = target / extra
            if not spot.parent.is_dir() or next(turn) % share:
                continue
            if link:
                os.symlink(link, spot)
            else:
                spot.write_text("x")
            case.evaluate(reads, name, f"{extra}: {what}", False, output)
            case.restore(name)


def named(argument: Reads | Writes) -> str:
    return f"{argument.command}-{argument.name}"


@pytest.mark.slow
def test_a_command_survives_a_sample_of_hostile_input(runner, tmp_path):
    """The sample of the quick tier: one command, one file, one case in eight."""
    good = tmp_path / "good"
    good.mkdir()
    (good / "small.yaml").write_text(SMALL)
    [reads] = [reads for reads in ARGUMENTS if reads.command == "check"]
    case = Case(good, tmp_path / "case", runner)
    attack(case, reads, "small.yaml", 8)
    case.report()
    assert case.cases > 10


def attack_stream(case: Case, reads: Reads, value: str, line: str) -> None:
    """Hostile standard input for a command that reads it: it answers a line with `line`, no line otherwise, and one line twice
    alike."""
    empty, stream = case.folder / "empty", case.folder / "stream"
    empty.touch()
    stream.touch()
    words = reads.words(value, case.beside)
    for stdin, same in ((empty, False), (None, True)):
        if (case.run(words, stdin).out == line) is not same or not line:
            return  # it prints times, or reads no standard input
    turn = count(COMMANDS.index(reads.command))
    for what, data in contents(b"which dog\tthe old dog sees\n"):
        if len(data) > 20_000:
            continue  # text like any other, and much of it: the computation is slow
        if next(turn) % STREAM_SHARE == 0:
            stream.write_bytes(data)
            case.evaluate(reads, value, f"standard input: {what}", False, stdin=stream)
    for endless in ("/dev/zero", "/dev/urandom"):
        case.evaluate(reads, value, f"standard input: {endless}", True, stdin=Path(endless))


@pytest.mark.exhaustive
@pytest.mark.parametrize("reads", ARGUMENTS, ids=named)
def test_a_command_survives_hostile_input(reads, good, runner, tmp_path):
    case = Case(good, tmp_path / "case", runner)
    value, line = case.usual(reads)
    if reads == next(each for each in ARGUMENTS if each.command == reads.command):
        attack_stream(case, reads, value, line)
    attack(case, reads, value, 1 if EVERY_CASE else share_of(reads, good / value))
    case.report()


FIRST = [reads for reads in ARGUMENTS if reads == next(each for each in ARGUMENTS if each.good == reads.good)]
"""One argument for each kind of file and directory."""
LARGE = {"tokeniser.json": 46 << 20, ".json": 15 << 20, ".yaml": 1_000_000, ".safetensors": 0}
"""Bytes of a large file by its name or ending: nearly as many as its reader takes."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("reads", FIRST, ids=named)
def test_a_large_file_takes_no_more_than_the_promised_time_and_memory(reads, good, runner, tmp_path):
    """5 s of processor time, twice that on a slow machine, and 500 MB; for every kind of file and of member of a directory."""
    case = Case(good, tmp_path / "case", runner)
    value, _ = case.usual(reads)
    target = case.inputs / value
    unread = case.unread(reads, value) if target.is_dir() else set()
    seen, turn = set(), count(FIRST.index(reads))
    for member in members(good / value) if target.is_dir() else [Path()]:
        whole, spot = good / value / member, target / member
        if whole.suffix not in LARGE or not whole.is_file() or member in unread or whole.name in seen:
            continue
        seen.add(whole.name)
        for what, made in large(whole.read_bytes(), whole.suffix, LARGE.get(whole.name, LARGE[whole.suffix])):
            if next(turn) % LARGE_SHARE:
                continue
            remove(spot)
            spot.write_bytes(made())
            case.evaluate(reads, value, f"{member}: {what}", False, target if reads.name == "resume" else None, seconds=10)
            case.restore(value if reads.name == "resume" or not target.is_dir() else str(Path(value) / member))
    case.report()


@pytest.mark.exhaustive
@pytest.mark.parametrize("writes", WRITTEN, ids=named)
def test_a_command_survives_a_hostile_place_to_write(writes, good, runner, tmp_path):
    case = Case(good, tmp_path / "case", runner)
    spot = case.inputs / "spot.json"
    for what, damage in not_regular(case.victim):
        damage(spot)
        before = snapshot(case.victim)
        ended = runner.run(writes.words(spot.name), case.inputs)
        case.note(f"{named(writes)}: {what}", ended.wrong(False))
        assert snapshot(case.victim) == before, what
        remove(spot)
    device = case.inputs / "device.json"
    with suppress(PermissionError):  # only root may make one: like /dev/null, which root could replace
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    turn = count(WRITTEN.index(writes))
    names = [name for name in NAMES if next(turn) % NAME_SHARE == 0]
    for name in (*names, "", "device.json", "no/such/folder/x.json", ".", "/", "small.yaml/x.json"):
        there = device.exists()
        ended = runner.run(writes.words(name), case.inputs)
        case.note(f"{named(writes)}: name {name[:20]!r}", ended.wrong(False))
        assert device.is_char_device() == there, "a device was replaced"
    for name in ("slash.json", "slash.html"):
        ended = runner.run(writes.words(f"{name}/"), case.inputs)
        case.note(f"{named(writes)}: name {name}/", ended.wrong(False))
        assert not (case.inputs / name).is_file(), "a file was written under the name of a directory"
        remove(case.inputs / name)
    case.report()
