"""The log of a run: one JSON object per line for every step and validation.

All lines are complete, except the last line of a process that was killed: it has no line break and is skipped. NaN and
infinities, which JSON lacks, are written as null.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from ..errors import Diagnostic, Location, StoreError
from ..files import FileModel, open_regular
from .callbacks import Count, Step, ValidationResult, Whole
from .run_directory import RunOutput
from .run_files import LOG

MAX_LINE = 1 << 22
"""The size limit of a line, in bytes; a validation holds a sample, of which `MAX_SAMPLE` characters are written."""
MAX_SAMPLE = 100_000
MAX_NUMBER = 1e39
MAX_REPEATED = 100
"""Entries of one step after its first: its validation, and those of runs that were killed before they wrote a checkpoint."""
Seconds = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(max_length=100)]


def _number(value: float | None) -> float:
    """A number from a log; null is NaN."""
    if value is not None and MAX_NUMBER < abs(value) < math.inf:
        raise ValueError(f"it is larger than {MAX_NUMBER:g}, the limit of float32")
    return math.nan if value is None else value


Number = Annotated[Annotated[float, Field(allow_inf_nan=True)] | None, AfterValidator(_number)]
"""A computed number, which may be NaN or infinite."""


class StepEntry(FileModel):
    """One step, as `tfkit.train.Step`."""

    kind: Literal["step"]
    step: Count
    epoch: Count
    loss: Number
    nll: Number
    rate: Number
    norm: Number
    source_tokens: Whole
    target_tokens: Whole
    seconds: Seconds


class ValidationEntry(FileModel):
    """One validation, as `tfkit.train.ValidationResult`."""

    kind: Literal["validation"]
    step: Whole
    epoch: Count
    nll: Number
    scores: dict[Name, Number]
    signatures: dict[Name, str]
    best: bool
    seconds: Seconds
    sample: Annotated[list[str], Field(min_length=3, max_length=3)] | None = None
    corpora: dict[Name, dict[Name, Number]] = {}
    rate: Number = None


Entry = StepEntry | ValidationEntry
_ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])


def append_log(path: Path, entry: Mapping[str, Any]) -> None:
    """Append a line to a log. Raises OSError if it cannot be written; the log is unchanged then."""
    line = json.dumps(finite(entry), allow_nan=False).encode() + b"\n"
    _separate(path)
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(number).st_size
        try:
            written = 0
            while written < len(line):
                written += os.write(number, line[written:])
        except BaseException:
            os.ftruncate(number, size)  # works on a full disk
            raise
    finally:
        os.close(number)


def _separate(path: Path) -> None:
    """Make a log that has other names (hard links) one of its own: only this run writes to it. Raises OSError."""
    if not path.is_file() or path.is_symlink() or os.stat(path).st_nlink == 1:
        return
    copy = path.with_name(f".{path.name}.copy")
    try:
        shutil.copyfile(path, copy, follow_symlinks=False)
        os.replace(copy, path)
    finally:
        copy.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """Data of a log with null for numbers that JSON has not."""
    if isinstance(value, Mapping):
        return {key: finite(member) for key, member in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_log(path: Path) -> list[Entry]:
    """The entries of a log; none if the file is missing. Raises StoreError, with the line number, for an invalid line."""
    return [entry for _, entry in _lines(path)]


def cut_log(path: Path, step: int) -> None:
    """Remove the entries after a step, which a resumed run writes again. Raises StoreError as `read_log`."""
    kept = sum(len(line) for line, _ in takewhile(lambda read: read[1].step <= step, _lines(path)))
    if os.path.lexists(path):
        try:
            _separate(path)
            with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "rb+") as file:
                file.truncate(kept)
        except OSError as reason:
            raise StoreError(Diagnostic("TFK082", f"{path} cannot be written: {reason.strerror}")) from None


def _lines(path: Path) -> Iterator[tuple[bytes, Entry]]:
    """The lines of a log and their entries, each after the one before it."""
    try:
        with open_regular(path, links=False) as file:
            number = last = repeated = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise _refused(path, number, f"it has more than {MAX_LINE:,} bytes")
                if not line.endswith(b"\n"):
                    return  # the process was killed while writing
                try:
                    entry = _ENTRY.validate_json(line)
                except ValidationError as error:
                    raise _refused(path, number, _reason(error)) from None
                repeated = repeated + 1 if entry.step == last else 0
                if entry.step < last or repeated > MAX_REPEATED:
                    raise _refused(path, number, f"step {entry.step:,} does not come after step {last:,}")
                last = entry.step
                yield line, entry
    except FileNotFoundError:
        return
    except OSError as reason:
        raise StoreError(Diagnostic("TFK082", f"{path} cannot be read: {reason.strerror}")) from None


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"][1:]))
    return f"`{place}`: {first['msg']}" if place else first["msg"]


def _refused(path: Path, number: int, reason: str) -> StoreError:
    fix = "it was altered; remove the line, or the file: only the training curve needs it"
    return StoreError(
        Diagnostic("TFK082", f"this line is no entry of the log of a run: {reason}", fix, location=Location(str(path), number))
    )


class LogWriter:
    """Appends every step and validation to the log. If that fails, training continues, and the failure is reported once until
    writing works again."""

    def __init__(self, output: RunOutput) -> None:
        self.output, self.path, self._failing = output, output.directory / LOG, False

    def on_step_end(self, step: Step) -> None:
        self._append("step", asdict(step))

    def on_validation_end(self, result: ValidationResult) -> None:
        sample = None if result.sample is None else [text[:MAX_SAMPLE] for text in result.sample]
        self._append("validation", {**result.written, "sample": sample})

    def _append(self, kind: str, entry: dict[str, Any]) -> None:
        try:
            self.output.check()
            append_log(self.path, {"kind": kind, **entry})
            self._failing = False
        except StoreError:  # the directory was removed, which ends the run
            return
        except OSError as reason:
            if not self._failing:
                message = f"{self.path} could not be written: {reason.strerror}"
                fix = "training continues; the log misses steps until it can be written again"
                self.output.callbacks.notify(lambda callback: callback.on_warning((Diagnostic("TFK081", message, fix),)))
            self._failing = True

    def on_train_start(self, trainer: Any, changes: list[str]) -> None:
        pass

    def on_checkpoint(self, step: int, path: Path) -> None:
        pass

    def on_warning(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        pass

    def on_train_end(self, reason: str, model: Path) -> None:
        pass
