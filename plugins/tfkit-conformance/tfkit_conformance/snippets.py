"""The case of a finding as Python that runs it again. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def backend_snippet(backend: str, case: Mapping[str, Any], device: str, check: str = "") -> str:
    """Runs a case of an attention backend again by one check, or by all layers if `check` is empty. `case` is JSON data."""
    fields = ", ".join(f"{name}={tuple(value) if isinstance(value, list) else value!r}" for name, value in case.items())
    wanted = f', check="{check}"' if check else ""
    return (
        "from tfkit_conformance import Case, replay\n\n"
        f"case = Case({fields})\n"
        f'print(replay("{backend}", case, device="{device}"{wanted}))\n'
        "inputs, grad_output = case.inputs(), case.grad_output()\n"
    )


def law_snippet(case: Mapping[str, Any]) -> str:
    """Runs a case of a law again."""
    return f"from tfkit_conformance.laws import replay_part\n\nreplay_part({case!r})\n"


def function_snippet(
    name: str, signature: str, supports: Sequence[str], case: Mapping[str, Any], device: str, check: str, dtypes: Sequence[str]
) -> str:
    """Runs a case of a plain function again. `name` is "module:function"."""
    module, _, function = name.partition(":")
    fields = ", ".join(f"{name}={tuple(value) if isinstance(value, list) else value!r}" for name, value in case.items())
    return (
        "from tfkit_conformance import Case, function_under_test, replay\n"
        f"from {module} import {function}\n\n"
        f'made = function_under_test({function}, "{signature}", supports={list(supports)}, dtypes={list(dtypes)}, '
        f'device="{device}")\n'
        f"case = Case({fields})\n"
        f'print(replay(made.subject, case, check="{check}"))\n'
        "calls = made.render(case.inputs(made.device)).calls  # the arguments of the function\n"
    )
