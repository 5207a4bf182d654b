"""The process that runs the suite, so that a part cannot affect the command. `parent` starts it.

    standard input     one JSON task: {"do": "evaluate" | "replay" | "smaller" | "list", ...}
    standard output    JSON lines, in this order; what a part prints goes to standard error instead
        {"about": {...}}            the part: distribution and dtypes
        {"at": [check, case]}       before every example
        {"said": [words, ...]}      what each stored case says now (of a replay)
        {"answer": ...}             the report as data, or what was asked for
        {"diagnostics": {...}}   or the error of tfkit that ended it
        {"bug": {...}}              or any other exception
        {"left": "SystemExit: 3"}   or what a part raised to end the process

One process does one task and ends without waiting for threads or exit handlers that a part has left behind.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any, TextIO

from tfkit import BuildError, Catalogue, Diagnostic, InputError, TfkitError, load_catalogue

from .stored import Stored

if TYPE_CHECKING:
    from ..attention.case import Case

SLOTS = ("backend", "position", "norm", "placement", "activation", "score", "cell")
"""The slots with checks."""

Task = dict[str, Any]
Say = Callable[[str, Any], None]


def main() -> None:
    """Do the one task of standard input."""
    say = _channel()
    code = 0
    try:
        task = json.loads(sys.stdin.read())
        with _flash_implementation(task.get("flash_implementation")):
            say("answer", DOES[task["do"]](task, say))
    except TfkitError as error:
        _say_diagnostics(say, error)
    except Exception as bug:
        stack = list(traceback.walk_tb(bug.__traceback__))
        frames = [[str(frame.f_globals.get("__name__", "")), line] for frame, line in stack]
        text = " ".join(f"{type(bug).__name__}: {bug}".split())
        if any(frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "torch" for frame, _ in stack):
            _say_diagnostics(
                say, BuildError(Diagnostic("TFK097", f"torch cannot be imported: {text[:200]}", "see `tfkit doctor`"))
            )
        else:
            say("bug", {"said": text, "frames": frames, "traceback": traceback.format_exc()})
    except BaseException as leaving:
        say("left", f"{type(leaving).__name__}: {leaving}".removesuffix(": "))
        code = 1
    finally:
        sys.stderr.flush()
        os._exit(code)


def _say_diagnostics(say: Say, error: TfkitError) -> None:
    say("diagnostics", {"kind": type(error).__name__, "diagnostics": [asdict(diagnostic) for diagnostic in error.diagnostics]})


def _flash_implementation(name: str | None) -> AbstractContextManager[None]:
    if name is None:
        return nullcontext()
    from ..callables.flash import flash_implementation_active

    return flash_implementation_active(name)


def _channel() -> Say:
    """Writes lines to what was standard output; from now on file descriptor 1 is standard error."""
    channel: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(kind: str, data: Any) -> None:
        channel.write(json.dumps({kind: plain(data)}, allow_nan=False) + "\n")
        channel.flush()

    return say


def evaluate(task: Task, say: Say) -> dict[str, Any]:
    """One part by every check of its slot: the report as data."""
    if task.get("function"):
        from .case_again import evaluate_function

        return evaluate_function(task, say, _event(say))
    if task.get("cache"):
        from ..caches.check import check_cache

        dtypes = task["dtypes"] or ["float32"]
        say("about", {"distribution": "", "dtypes": dtypes})
        usual = {key: task[key] for key in ("profile", "device", "seed", "limit")}
        return check_cache(task["name"], dtypes=dtypes, event=_event(say), **usual).as_data()
    catalogue = load_catalogue()
    slot, name = task["slot"], task["name"]
    entry = _entry(catalogue, slot, name)
    options = _options(catalogue, slot, entry, task["options"])
    say("about", {"distribution": catalogue.registered[slot][name].distribution, "dtypes": task["dtypes"] or _declared(entry)})
    usual = {key: task[key] for key in ("profile", "device", "dtypes", "seed")}
    if slot == "backend":
        from ..suite.conformance import check_backend

        event = _event(say)
        return check_backend(name, options=options, catalogue=catalogue, limit=task["limit"], event=event, **usual).as_data()
    from ..laws import check_part
    from ..resolve import missing_device

    if reason := missing_device(task["device"]):
        return _not_run(catalogue, task, entry, f"not run: {reason}")

    return check_part(slot, name, options=options, catalogue=catalogue, event=_event(say), **usual).as_data()


def replay(task: Task, say: Say) -> list[str]:
    """Runs stored cases one after the other: see `tfkit_conformance.process.case_again`."""
    if task.get("function"):
        from .case_again import replay_function

        return replay_function(task, say)
    catalogue = load_catalogue()
    from .case_again import backend_case_again, law_case_again

    answers = []
    for stored in (Stored(**fields) for fields in task["stored"]):
        entry = _entry(catalogue, stored.slot, stored.name)
        say("at", [stored.check, stored.case])
        if stored.slot == "backend":
            options = _options(catalogue, stored.slot, entry, stored.options)
            words = backend_case_again(stored, options, catalogue, task["limit"])
        else:
            words = law_case_again(stored, entry, catalogue)
        answers.append(words)
        say("said", [words])
    return answers


def smaller(task: Task, say: Say) -> None:
    catalogue = load_catalogue()
    from ..attention.case_data import case_of
    from ..resolve import resolve
    from ..suite.again import replay, smaller_cases
    from .case_again import WHOLE

    if task.get("function"):
        from .case_again import subject_of

        subject = subject_of(task)
    else:
        entry = _entry(catalogue, "backend", task["name"])
        options = _options(catalogue, "backend", entry, task["options"])
        subject, _ = resolve(task["name"], options, task["device"], catalogue)
    for case in islice(smaller_cases(case_of(task["case"]), subject), task["most"]):
        say("at", [task["check"], case.as_data()])
        replay(subject, case, check="" if task["check"] in WHOLE else task["check"], limit=task["limit"])


def _not_run(catalogue: Catalogue, task: Task, entry: Any, reason: str) -> dict[str, Any]:
    """The report on a part whose device is not there."""
    from ..report import CheckResult, ConformanceReport
    from ..resolve import versions

    slot, name = task["slot"], task["name"]
    return ConformanceReport(
        slot, name, catalogue.registered[slot][name].distribution, task["options"] or {}, task["device"],
        tuple(task["dtypes"] or ()), task["profile"], task["seed"], versions("cpu"),
        tuple(CheckResult(check, "", "", "not run", note=reason) for check in _checks(catalogue, slot, entry)),
    ).as_data()  # fmt: skip


def listed(task: Task, say: Say) -> list[list[str]]:
    """The names of the checks of each part, before any of them has run."""
    catalogue = load_catalogue()
    from ..resolve import known_dtypes

    known_dtypes(task["dtypes"])
    return [_checks(catalogue, slot, _entry(catalogue, slot, name)) for slot, name in task["parts"]]


def _checks(catalogue: Catalogue, slot: str, entry: Any) -> list[str]:
    if slot == "backend":
        from ..relations import RELATIONS
        from ..suite.layers import LAYERS

        relations = [relation.label for relation in RELATIONS]
        return ["declaration", *(layer.name for layer in LAYERS), "refusals", *relations, "grade"]
    from ..laws.check import LAWS
    from ..laws.law import part_under_test
    from ..laws.options import variants

    subject = part_under_test(catalogue, slot, entry)
    chosen = variants(catalogue, entry)
    return [law.name for law in LAWS[slot] if any(law.applies(subject, options) for options in chosen)]


DOES: dict[str, Callable[[Task, Say], Any]] = {"evaluate": evaluate, "replay": replay, "smaller": smaller, "list": listed}


def _entry(catalogue: Catalogue, slot: str, name: str) -> Any:
    """The entry of a part. Raises InputError for an unknown slot or name."""
    if slot not in SLOTS:
        near = get_close_matches(slot, SLOTS, 1)
        known = slot in catalogue.registered
        fix = f"did you mean `{near[0]}`?" if near and not known else f"slots with checks: {', '.join(SLOTS)}"
        message = f"the slot `{slot}` has no checks" if known else f"there is no slot `{slot}`"
        raise InputError(Diagnostic("TFK094", message, fix))
    entry = catalogue.find(slot, name)
    if entry is None or (slot == "backend" and name == "auto"):
        what = "attention backend" if slot == "backend" else slot
        raise InputError(Diagnostic("TFK094", f"there is no {what} `{name}`", _suggestion(catalogue, slot, name)))
    return entry


def _suggestion(catalogue: Catalogue, slot: str, name: str) -> str:
    """What to write in place of a name that the slot has not."""
    if name == "auto" and slot == "backend":
        return "`auto` chooses among backends and is none itself"
    if ":" in name and slot == "backend":
        return f"if it is a plain function, name it again: --callable {name} --signature FORM"
    others = [other for other in SLOTS if other != slot and catalogue.find(other, name) is not None]
    if others:
        slots = " or ".join(f"--slot {other}" for other in others)
        return f"there is a part of this name in another slot: {slots}"
    return catalogue.why_missing(slot, name)


def _options(catalogue: Catalogue, slot: str, entry: Any, written: Any) -> Any:
    """Options from what is written; None for a part of a slot whose laws choose options themselves. Raises SpecError."""
    if written is None and slot != "backend":
        return None
    known = entry.options.model_fields
    for key in sorted(set(written or ()) - set(known)):
        near = get_close_matches(key, known, 1)
        fix = f"did you mean `{near[0]}`?" if near else f"options: {', '.join(known)}" if known else "it has no options"
        raise InputError(Diagnostic("TFK010", f"{slot} `{entry.name}` has no option `{key}`", fix))
    from ..laws.options import parsed

    return parsed(catalogue, slot, entry, written or {})


def _declared(entry: Any) -> list[str]:
    capabilities = getattr(entry, "capabilities", None)
    return sorted(capabilities.dtypes) if capabilities is not None else []


def _event(say: Say) -> Callable[[str, Any], None]:
    def event(check: str, case: Case | dict[str, Any] | None) -> None:
        say("at", [check, case if case is None or isinstance(case, dict) else case.as_data()])

    return event


def plain(data: Any) -> Any:
    """The data with numbers that JSON has not as words: "nan", "inf", "-inf"."""
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, dict):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple, set, frozenset)):
        return [plain(value) for value in data]
    return data
