"""Runs the suite in a child process (`child`), reads its messages, and reports how it ended if it did not answer.

    dies by a signal           a finding: "the backend killed the process (SIGSEGV) in check support", with a smaller case
    says nothing for too long  killed, and a finding: "did not finish within 60 seconds"
    an error of tfkit          raised here as it was there

`limit` is what one example may take. Python code is interrupted in the child itself when it is over; only what does not return
to Python by then, a loop in C for instance, is killed from here, `grace` seconds later. Imports no torch.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import signal
import site
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from types import FrameType
from typing import Any, TextIO, cast

import tfkit
from tfkit import Diagnostic, PluginError, TfkitError

from ..finding import Finding
from ..report import CheckResult, ConformanceReport, Status
from ..snippets import backend_snippet, function_snippet, law_snippet
from .stored import Stored

ENVIRONMENT = {"PYTHONSAFEPATH": "1", "HYPOTHESIS_STORAGE_DIRECTORY": os.devnull}
"""What the environment of a child holds, so that a Python process which it starts leaves the working directory out as well, and
that Hypothesis neither reads nor writes `.hypothesis` there: in the place of a file it can make no directory."""


def python_command(code: str) -> list[str]:
    """The command line of a child that runs `code` with the module path of this process."""
    path = [entry for entry in sys.path if os.path.isabs(entry)]
    # `-I` leaves the user's own site-packages out, and their .pth files are how editable installs are found.
    user = "site.addsitedir(site.getusersitepackages()); " if site.ENABLE_USER_SITE else ""
    return [sys.executable, "-I", "-c", f"import sys, site; {user}sys.path[:] = {path!r}; {code}"]


CALM = {"OMP_WAIT_POLICY": "passive"}
"""OpenMP threads sleep while they wait: the calls are small, and spinning beside other work makes a run ten times as long."""

BOOT = "from tfkit_conformance.process.child import main; main()"
GRACE = 5.0
"""Seconds beyond its limit in which an example may still be interrupted from within."""

OVERDUE = 2
"""How many examples may be interrupted from within before the run ends: a part that always hangs would take hours."""

IMPORT = 120.0
"""Seconds at least for importing torch and the part, which may compile its kernels then."""

SHRINK_PROCESSES, SHRINK_CASES = 12, 400
"""Bounds of the search for a smaller case that ends the process too: processes, and cases tried in all of them. They are
counts, not seconds: a slow machine finds the same case."""

Progress = Callable[[str, int], None]
Lines = queue.Queue["str | None"]


class ChildBug(Exception):
    """An exception in the child that is no error of tfkit. `frames` are module and line, outermost first; `where` is the text
    of its traceback."""

    def __init__(self, message: str, frames: list[tuple[str, int]], where: str) -> None:
        super().__init__(message)
        self.message, self.frames, self.where = message, frames, where


@dataclass
class ChildRun:
    """What one child has reported. `ended` says how it ended without an answer, or is empty; `overdue` says that this process
    killed it."""

    about: dict[str, Any] = field(default_factory=dict)
    check: str = ""
    case: dict[str, Any] = field(default_factory=dict)
    examples: dict[str, int] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    answer: Any = None
    ended: str = ""
    overdue: bool = False
    seconds: float = 0.0


def evaluated(task: dict[str, Any], grace: float = GRACE, progress: Progress = lambda check, examples: None) -> dict[str, Any]:
    """The report on one part as data: `slot`, `name`, `options`, `profile`, `device`, `dtypes`, `seed` and `limit` as
    `check_backend` and `check_part` have them. Whatever the part does to its process is in the report.

    Raises what these raise, and ChildBug.
    """
    child_run = run({"do": "evaluate", **task}, task["limit"], grace, progress)
    if not child_run.ended:
        return dict(child_run.answer)
    if child_run.case and task["slot"] == "backend" and not child_run.overdue:
        _shrink(task, child_run, grace)
    return _report(task, child_run).as_data()


def _shrink(task: dict[str, Any], child_run: ChildRun, grace: float) -> None:
    """Put a smaller case that ends the process too in the place of the one that did."""
    left, processes = SHRINK_CASES, SHRINK_PROCESSES
    while left > 0 and processes > 0:
        asked = {"check": _check(child_run, child_run.check), "case": child_run.case, "most": left}
        with suppress(TfkitError, ChildBug):
            again = run({"do": "smaller", **task, **asked}, task["limit"], grace)
            left, processes = left - sum(again.examples.values()), processes - 1
            if again.ended and not again.overdue and again.case:
                child_run.case = again.case
                continue
        return


def replayed(stored: Sequence[Stored], limit: float, grace: float = GRACE, **fields: Any) -> list[str]:
    """What every stored case says now, "passed" or in words what is wrong; a process that dies is followed by another. `fields`
    are more of the task: `function` names the plain function that the cases are of, `flash_implementation` what is active."""
    answers: list[str] = []
    while len(answers) < len(stored):
        left = [asdict(case) for case in stored[len(answers) :]]
        task = {"do": "replay", "stored": left, "limit": limit, "name": left[0]["name"], **fields}
        child_run = run(task, limit, grace)
        answers += child_run.messages + ([child_run.ended] if child_run.ended else [])
    return answers


def checks_of(parts: Sequence[tuple[str, str]], dtypes: Sequence[str] = ()) -> list[list[str]]:
    """The names of the checks of each (slot, name), asked for in one process. Raises TfkitError where a name or a dtype is
    none, or a plugin ends the process."""
    child_run = run({"do": "list", "parts": [list(part) for part in parts], "dtypes": list(dtypes)}, IMPORT, GRACE)
    if child_run.ended:
        names = ", ".join(name for _, name in parts)
        raise PluginError(Diagnostic("TFK096", f"importing {names} {child_run.ended}", "fix what its plugin does at import"))
    return [list(names) for names in child_run.answer]


def run(
    task: dict[str, Any],
    limit: float,
    grace: float,
    progress: Progress = lambda check, examples: None,
) -> ChildRun:
    """Gives the task to a child process and reads its messages to the end."""
    child_run, begun = ChildRun(), time.monotonic()
    with _child(task) as (process, lines):
        overdue = 0
        while True:
            allowed, since = limit if child_run.examples else max(limit, IMPORT), time.monotonic()
            try:
                line = lines.get(timeout=allowed + grace)
            except queue.Empty:
                line, overdue = "", OVERDUE
            overdue += time.monotonic() - since > allowed
            child_run.overdue = overdue >= OVERDUE
            if child_run.overdue:
                child_run.ended = f"did not finish within {allowed:g} seconds"
                break
            if line is None:
                child_run.ended = _describe_end(process, process.wait())
                break
            if _take(child_run, line, progress):
                break
    child_run.seconds = round(time.monotonic() - begun, 2)
    return child_run


def _take(child_run: ChildRun, line: str, progress: Progress) -> bool:
    """Reads one message; True where it is the last. Raises the error of the child."""
    try:
        [(kind, data)] = json.loads(line).items()
    except (ValueError, AttributeError):  # written by a part that found the pipe
        sys.stderr.write(line)
        return False
    if kind == "about":
        child_run.about = data
    elif kind == "at":
        child_run.check, child_run.case = data[0], data[1] or {}
        child_run.examples[child_run.check] = child_run.examples.get(child_run.check, 0) + 1
        progress(child_run.check, sum(child_run.examples.values()))
    elif kind == "said":
        child_run.messages += data
    elif kind == "left":
        child_run.ended = f"ended the process by raising {data}"
    elif kind == "diagnostics":
        diagnostics = [
            Diagnostic(diagnostic["code"], diagnostic["message"], diagnostic["fix"], diagnostic["path"])
            for diagnostic in data["diagnostics"]
        ]
        raise getattr(tfkit, data["kind"], TfkitError)(diagnostics)
    elif kind == "bug":
        raise ChildBug(data["said"], [(module, line) for module, line in data["frames"]], data["traceback"])
    elif kind == "answer":
        child_run.answer = data
    return kind in ("left", "answer")


def _describe_end(process: subprocess.Popen[str], code: int) -> str:
    if code >= 0:
        return f"ended the process with exit code {code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
        why = "; the system may have run out of memory" if name == "SIGKILL" else ""
        return f"killed the process ({name}{why})"
    return f"killed the process (signal {-code})"


@contextmanager
def _child(task: dict[str, Any]) -> Iterator[tuple[subprocess.Popen[str], Lines]]:
    """A child with its task; it does not outlive the block, nor does what it has started. Its group is its own, so that an
    interrupt at the terminal reaches only this process."""
    process = subprocess.Popen(
        python_command(BOOT), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
        errors="backslashreplace", start_new_session=True, env={**CALM, **os.environ, **ENVIRONMENT},
    )  # fmt: skip
    lines: Lines = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    try:
        with _terminated_as_interrupted():
            reader.start()
            threading.Thread(target=_await, args=(process, reader, lines), daemon=True).start()
            with suppress(BrokenPipeError), cast(TextIO, process.stdin) as task_input:
                task_input.write(json.dumps(task, allow_nan=False))
            yield process, lines
    finally:
        _kill(process)
        reader.join(timeout=1.0)
        if not reader.is_alive():
            cast(TextIO, process.stdout).close()


def _read(output: TextIO, lines: Lines) -> None:
    """Every line of the child."""
    with suppress(ValueError, OSError):
        for line in output:
            lines.put(line)


def _await(process: subprocess.Popen[str], reader: threading.Thread, lines: Lines) -> None:
    """None after the last line. A process that the child has started may hold the pipe open: the child's own end counts."""
    process.wait()
    reader.join(timeout=1.0)
    lines.put(None)


def _kill(process: subprocess.Popen[str]) -> None:
    if sys.platform != "win32":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """A request to terminate ends the child too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(task: dict[str, Any], child_run: ChildRun) -> ConformanceReport:
    """What is known of a part that never let the suite finish: one finding, and no verdict on anything else."""
    what = "function" if task.get("function") else task["slot"]
    check, examples = _check(child_run, child_run.check), _examples(child_run)
    where = f"in check {check}" if child_run.examples else "while it was imported"
    message = f"the {what} {child_run.ended} {where}"
    tried = examples.pop(check, 0)
    checks = [CheckResult(check, "A1", "it returns, and does not end its process", "failed", tried)]
    cut: Status = "inconclusive"
    checks += [CheckResult(name, "", "", cut, number, note=f"the run ended in {check}") for name, number in examples.items()]
    snippet = ""
    if case := child_run.case:
        snippet = backend_snippet(task["name"], case, task["device"]) if task["slot"] == "backend" else law_snippet(case)
        if function_task := task.get("function"):
            dtypes = [case.get("dtype", "float32")]
            snippet = function_snippet(
                task["name"], function_task["signature"], function_task["supports"] or [], case, task["device"], "", dtypes
            )  # fmt: skip
    finding = Finding(check, "A1", message, case=case, failed=1, examples=max(tried, 1), snippet=snippet)
    return ConformanceReport(
        task["slot"], task["name"], child_run.about.get("distribution", ""), task["options"] or {}, task["device"],
        tuple(child_run.about.get("dtypes", ())), task["profile"], task["seed"], _versions(), tuple(checks), (finding,),
        seconds=child_run.seconds,
    )  # fmt: skip


def _check(child_run: ChildRun, label: str) -> str:
    """The check that was said to run; one that draws no cases is followed by its dtype."""
    name, _, last = label.rpartition(" ")
    return (name if last in child_run.about.get("dtypes", ()) else label) or "import"


def _examples(child_run: ChildRun) -> dict[str, int]:
    """How many examples of every check were started."""
    examples: dict[str, int] = {}
    for label, number in child_run.examples.items():
        check = _check(child_run, label)
        examples[check] = examples.get(check, 0) + number
    return examples


def _versions() -> dict[str, str]:
    versions = {}
    for name, version_of in (("tfkit", lambda name: tfkit.__version__), ("torch", version)):
        with suppress(PackageNotFoundError):
            versions[name] = version_of(name)
    return versions | {"python": platform.python_version(), "machine": platform.machine()}
