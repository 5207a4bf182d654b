"""A stored case as Python that anyone can run: the same tensors, the same call, the same numbers."""

from __future__ import annotations

from ..attention.case import Case


def snippet_of(backend: str, case: Case, device: str, check: str) -> str:
    """A few lines that run the case again through the public functions."""
    fields = ", ".join(f"{name}={value!r}" for name, value in case.as_data().items())
    return (
        "from tfkit_conformance import Case, replay\n\n"
        f"case = Case({fields})\n"
        f'print(replay("{backend}", case, device="{device}", check="{check}"))\n'
        "inputs, grad_output = case.inputs(), case.grad_output()\n"
    )
