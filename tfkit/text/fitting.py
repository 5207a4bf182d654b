"""Which use a model has, and the fault of one that is asked for another."""

from __future__ import annotations

from ..data import Roles, roles_of
from ..errors import Diagnostic, InputError
from ..nn.model_plan import ModelPlan

USES = {
    "parallel": ("translates", "tfkit translate", "tfkit.Translator"),
    "language": ("goes on from a prompt", "tfkit generate", "tfkit.TextGenerator"),
    "classification": ("classifies", "tfkit classify", "tfkit.Classifier"),
}
"""By kind of data what a model of it does, with the command and the class for it."""


def roles_for(plan: ModelPlan, kind: str) -> Roles:
    """The roles of a model's nodes for a use. Raises InputError, which names the right command for a model of another."""
    if not fits(plan, kind) and (others := [other for other in USES if fits(plan, other)]):
        does, command, name = USES[others[0]]
        message = f"`{plan.name}` is no model that {USES[kind][0]}: it {does}"
        raise InputError(Diagnostic("TFK107", message, f"use `{command}`, in Python {name}"))
    return roles_of(plan, kind)


def fits(plan: ModelPlan, kind: str) -> bool:
    try:
        roles_of(plan, kind)
    except InputError:
        return False
    return True
