"""What the child process does with a plain function. The task names it: `{"function": {"target", "signature", "supports"}}`.

Only words of the command line are imported. A report is data: replaying one asks for the function again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case_data import case_of
from ..callables.adaptor import FunctionUnderTest
from ..callables.check import check_callable, function_under_test
from ..callables.locate import function_named, transformers_function
from ..suite.again import replay
from .case_again import WHOLE
from .stored import Stored

Task = dict[str, Any]
Say = Callable[[str, Any], None]


def evaluate_function(task: Task, say: Say, event: Callable[[str, Any], None]) -> dict[str, Any]:
    """The report on a plain function as data."""
    given = task["function"]
    function = _function(task)
    say("about", {"distribution": "", "dtypes": task["dtypes"] or []})
    return check_callable(
        function, given["signature"], supports=given["supports"], profile=task["profile"], device=task["device"],
        dtypes=task["dtypes"], seed=task["seed"], name=task["name"], limit=task["limit"], event=event,
    ).as_data()  # fmt: skip


def replay_function(task: Task, say: Say) -> list[str]:
    """Runs stored cases of a plain function one after the other."""
    said = []
    for stored in (Stored(**each) for each in task["stored"]):
        case = case_of(stored.case)
        made = _under_test(task, dtypes=(case.dtype,), device=stored.device)
        say("at", [stored.check, stored.case])
        words = replay(made.subject, case, check="" if stored.check in WHOLE else stored.check, limit=task["limit"])
        said.append(words)
        say("said", [words])
    return said


def subject_of(task: Task) -> BackendUnderTest:
    """The function of a task as a backend under test."""
    return _under_test(task, dtypes=task["dtypes"] or (task["case"].get("dtype", "float32"),), device=task["device"]).subject


def _under_test(task: Task, dtypes: tuple[str, ...], device: str) -> FunctionUnderTest:
    from ..callables.locate import signature_named

    given = task["function"]
    form = signature_named(given["signature"])
    supports = given["supports"] if given["supports"] is not None else [*form.features, "strides"]
    return function_under_test(_function(task), form, supports=supports, dtypes=dtypes, device=device, name=task["name"])


def _function(task: Task) -> Callable[..., Any]:
    given = task["function"]
    return transformers_function(given["huggingface"]) if given["huggingface"] else function_named(given["target"])
