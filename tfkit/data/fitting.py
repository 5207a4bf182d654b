"""Whether a saved model fits its use: the errors of a model of another kind, and of the wrong number of classes."""

from __future__ import annotations

from ..errors import Diagnostic, InputError
from ..nn.model_plan import ModelPlan
from .labels import check_labels
from .roles import Roles, roles_of

USES = {
    "parallel": ("translates", "tfkit translate", "tfkit.Translator"),
    "language": ("continues a prompt", "tfkit generate", "tfkit.TextGenerator"),
    "classification": ("classifies text", "tfkit classify MODEL", "tfkit.Classifier"),
    "pairs": ("classifies pairs", "tfkit classify MODEL", "tfkit.Classifier"),
    "tagged": ("tags words", "tfkit tag", "tfkit.Tagger"),
    "spans": ("answers questions", "tfkit answer", "tfkit.Answerer"),
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


def check_classes(plan: ModelPlan, roles: Roles, names: tuple[str, ...], name: str = "label") -> None:
    """Raises InputError if the output has not one class for each of the names, which are called `name` in the message, or if
    one cannot be a label or is there twice."""
    classes = plan.widths[roles.output]
    if classes != len(names):
        message = f"`{roles.output}` has {classes} classes, and there are {len(names)} {name}s"
        raise InputError(Diagnostic("TFK116", message, f"give a {name} for every class, in the order of the output"))
    try:
        check_labels(names, words=name == "tag")
    except ValueError as reason:
        raise InputError(Diagnostic("TFK116", str(reason), "give every class a name of its own, on one line")) from None


def fits(plan: ModelPlan, kind: str) -> bool:
    try:
        roles_of(plan, kind)
    except InputError:
        return False
    return True
