"""The result of a stored case on the part as it is now, in words:

passed                 the check that failed holds
refused: why           the declaration of the part now excludes the case, which resolves a finding too
not run: why           its device is not there
inconclusive: why      nothing can be said
anything else          what is wrong
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfkit import Catalogue

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case_data import case_of
from ..callables.adaptor import FunctionUnderTest
from ..callables.check import check_callable, function_under_test
from ..callables.hub_kernel import hub_function
from ..callables.locate import function_named, transformers_function
from ..finding import Inconclusive, Violation
from ..laws.check import replay_part
from ..laws.law import part_under_test
from ..laws.options import parsed
from ..laws.position_use import site_of
from ..resolve import missing_device, resolve, why_not_run
from ..suite.again import replay
from .stored import Stored

WHOLE = ("", "layers", "import")
"""Checks that mean all layers: it is unknown in which layer a process ended."""


def backend_case_again(stored: Stored, options: Any, catalogue: Catalogue, limit: float) -> str:
    """Runs a case of an attention backend. Raises InputError for an invalid check or case."""
    subject, _ = resolve(stored.name, options, stored.device, catalogue)
    case = case_of(stored.case)
    if reason := why_not_run(subject):
        return reason
    verdict = subject.evaluate(case.request(subject.device))
    if not verdict.accepted:
        return f"refused: {'; '.join(verdict.refused)}"
    return replay(subject, case, check="" if stored.check in WHOLE else stored.check, limit=limit)


def law_case_again(stored: Stored, entry: Any, catalogue: Catalogue) -> str:
    """Runs a case of a law. Raises InputError for an invalid case."""
    if reason := missing_device(stored.device):
        return f"not run: {reason}"
    try:
        replay_part({**stored.case, "name": stored.name, "device": stored.device}, catalogue)
    except Violation as violation:
        reasons = _refused(stored, entry, catalogue)
        return f"refused: {'; '.join(reasons)}" if reasons else f"{violation.check}: {violation.message}"
    except Inconclusive as inconclusive:
        return f"inconclusive: {inconclusive}"
    return "passed"


def _refused(stored: Stored, entry: Any, catalogue: Catalogue) -> tuple[str, ...]:
    """Why a position scheme does not act at the site of the case. Its declaration itself is evaluated at refused sites, too."""
    if stored.slot != "position" or stored.check == "declaration":
        return ()
    options = parsed(catalogue, stored.slot, entry, stored.case["options"])
    return tuple(entry.unsupported(options, site_of(part_under_test(catalogue, stored.slot, entry), stored.case["at"])))


Task = dict[str, Any]
Say = Callable[[str, Any], None]


def evaluate_function(task: Task, say: Say, event: Callable[[str, Any], None]) -> dict[str, Any]:
    """The report on a plain function as data."""
    function_task = task["function"]
    function = _function(task)
    say("about", {"distribution": "", "dtypes": task["dtypes"] or []})
    return check_callable(
        function, function_task["signature"], supports=function_task["supports"], profile=task["profile"],
        device=task["device"], dtypes=task["dtypes"], seed=task["seed"], name=task["name"], limit=task["limit"], event=event,
    ).as_data()  # fmt: skip


def replay_function(task: Task, say: Say) -> list[str]:
    """Runs stored cases of a plain function one after the other."""
    answers = []
    for stored in (Stored(**fields) for fields in task["stored"]):
        case = case_of(stored.case)
        under_test = _under_test(task, dtypes=(case.dtype,), device=stored.device)
        say("at", [stored.check, stored.case])
        words = replay(under_test.subject, case, check="" if stored.check in WHOLE else stored.check, limit=task["limit"])
        answers.append(words)
        say("said", [words])
    return answers


def subject_of(task: Task) -> BackendUnderTest:
    """The function of a task as a backend under test."""
    return _under_test(task, dtypes=task["dtypes"] or (task["case"].get("dtype", "float32"),), device=task["device"]).subject


def _under_test(task: Task, dtypes: tuple[str, ...], device: str) -> FunctionUnderTest:
    from ..callables.check import signature_named

    function_task = task["function"]
    form = signature_named(function_task["signature"])
    supports = function_task["supports"] if function_task["supports"] is not None else [*form.features, "strides"]
    return function_under_test(_function(task), form, supports=supports, dtypes=dtypes, device=device, name=task["name"])


def _function(task: Task) -> Callable[..., Any]:
    function_task = task["function"]
    find = {"huggingface": transformers_function, "hf_kernel": hub_function, "target": function_named}
    return next(function(function_task[key]) for key, function in find.items() if function_task.get(key))
