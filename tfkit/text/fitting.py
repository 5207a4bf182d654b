"""The task of a model, and the error if it is used for another one."""

from __future__ import annotations

from ..data import Roles, roles_of
from ..errors import Diagnostic, InputError
from ..nn.model_plan import ModelPlan

USES = {
    "parallel": ("translates", "tfkit translate", "tfkit.Translator"),
    "language": ("continues a prompt", "tfkit generate", "tfkit.TextGenerator"),
    "classification": ("classifies text", "tfkit classify MODEL", "tfkit.Classifier"),
    "pairs": ("classifies pairs", "tfkit classify MODEL", "tfkit.Classifier"),
    "tagged": ("tags words", "tfkit tag", "tfkit.Tagger"),
    "images": ("classifies images", "tfkit classify MODEL IMAGE...", "tfkit.ImageClassifier"),
}
"""By kind of data: the task of a model, its command and its class."""


def roles_for(plan: ModelPlan, kind: str) -> Roles:
    """The roles of a model's nodes for a kind of data. Raises InputError with the right command if the model is of another
    kind."""
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
