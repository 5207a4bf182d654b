"""The nodes of a model for the columns of the data, and the errors of a model for another kind of data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..errors import Diagnostic, InputError
from ..nn.model_plan import ModelPlan
from ..slots.node import AnyInputRule, ImageRule, InputRule
from .labels import check_labels
from .text_frame import END, PAD, START
from .tokeniser import TextTokeniser


@dataclass(frozen=True)
class Roles:
    """The nodes of a model in training.

    Attributes:
        source: The input that is encoded and not predicted; None for a model with one input.
        target: The input whose next tokens, masked tokens or class are predicted.
        output: The output that predicts it.
        segments: Whether the target has an embedding for each of two segments.
        others: The other outputs that are trained, by their labels: `random` for whether a text does not follow another.
        start_id: The first token of a target that is decoded.
    """

    source: str | None
    target: str
    output: str
    segments: bool = False
    others: Mapping[str, str] = field(default_factory=dict)
    start_id: int = START

    @property
    def outputs(self) -> tuple[str, ...]:
        """All outputs that are trained."""
        return (self.output, *self.others.values())

    def of(self, column: str) -> str:
        """The input node of a column of the corpus."""
        return self.source if column == "source" and self.source else self.target


def _described(rule: AnyInputRule, whole: bool) -> str:
    if isinstance(rule, InputRule):
        return "read as a whole" if whole else "predicted"
    return "images" if isinstance(rule, ImageRule) else "features"


def roles_of(plan: ModelPlan, kind: str) -> Roles:
    """The roles of a model's nodes for a kind of data.

    Raises InputError if the model does not have the inputs of the data, or not exactly one output that can be trained.
    """
    decoded = [name for name in plan.inputs if name not in plan.undecodable]
    read = [name for name in plan.inputs if name in plan.undecodable]
    predicted, sources, required = {
        "parallel": (decoded, read, "a source that is read as a whole and a target that is predicted token by token"),
        "language": (decoded, [], "one input that is predicted token by token"),
        "texts": (decoded, [], "one input that is predicted token by token"),
        "masked": (read, [], "one input that is read as a whole"),
        "masked_pairs": (read, [], "one input that is read as a whole"),
        "classification": (list(plan.inputs), [], "one input of token ids"),
        "pairs": (list(plan.inputs), [], "one input of token ids"),
        "tagged": (list(plan.inputs), [], "one input of token ids"),
        "spans": (read, [], "one input that is read as a whole"),
        "images": (list(plan.inputs), [], "one input of images"),
    }[kind]
    rule_of = ImageRule if kind == "images" else InputRule
    fits = all(isinstance(rule, rule_of) for rule in plan.inputs.values())
    if (
        not fits
        or len(predicted) != 1
        or len(sources) != (kind == "parallel")
        or len(plan.inputs) != len(predicted) + len(sources)
    ):
        inputs = ", ".join(f"{name} ({_described(plan.inputs[name], name in read)})" for name in plan.inputs)
        fix = "choose another spec, or `data.kind`"
        raise InputError(
            Diagnostic("TFK107", f"data of kind `{kind}` need {required}; `{plan.name}` has the inputs {inputs}", fix)
        )
    target = predicted[0]
    spans = [name for name, rule in plan.labels.items() if rule.kind == "span" and name in plan.followers[target]]
    if kind == "spans" and len(spans) != 1:
        message = f"outputs over the positions of `{target}`: {', '.join(spans) or 'none'}"
        raise InputError(Diagnostic("TFK107", message, "training needs exactly one: a `span_logits` node among the outputs"))
    output = (
        spans[0]
        if kind == "spans"
        else _output(plan, target, kind not in ("classification", "pairs", "images", "tagged"), kind == "tagged")
    )
    others = {"random": _output(plan, target, False, False)} if kind == "masked_pairs" else {}
    rule = plan.inputs[target]
    segments = isinstance(rule, InputRule) and rule.segments > 1
    start = rule.start_id if isinstance(rule, InputRule) and rule.start_id is not None else START
    return Roles(sources[0] if sources else None, target, output, segments, others, start)


def _output(plan: ModelPlan, target: str, words: bool, per_token: bool) -> str:
    """The output over the ids of the target (`words`), or over classes, of the whole row or of each token (`per_token`).
    Raises InputError if there is not exactly one."""
    rule = plan.inputs[target]
    size = rule.vocab_size if isinstance(rule, InputRule) else 0
    outputs = [name for name in plan.outputs if name in plan.followers[target] and name in plan.widths]
    outputs = [name for name in outputs if (plan.widths[name] == size) is words]
    outputs = [name for name in outputs if name not in plan.labels or plan.labels[name].kind != "span"]
    outputs = [name for name in outputs if words or (name in plan.sequences) is per_token]
    if len(outputs) != 1:
        over = f"over the {size} ids of `{target}`" if words else f"over classes{' of tokens' if per_token else ''}"
        needed = "a `token_logits` node" if words else f"a `classify` node {'without' if per_token else 'after'} a `pool` node"
        message = f"outputs {over}: {', '.join(outputs) or 'none'}"
        raise InputError(Diagnostic("TFK107", message, f"training needs exactly one: {needed} among the outputs"))
    return outputs[0]


def check_ids(plan: ModelPlan, roles: Roles, tokenisers: Mapping[str, TextTokeniser]) -> None:
    """Raises InputError if special ids or vocabularies of model and tokenisers (by column) differ. An imported model has the
    special ids of its spec."""
    diagnostics = []
    for column, tokeniser in tokenisers.items():
        node, size = roles.of(column), tokeniser.size
        rule = plan.token_rule(node)
        if rule.vocab_size != size:
            message = f"`{node}` has a vocabulary of {rule.vocab_size:,}, its tokeniser has {size:,} ids"
            diagnostics.append(Diagnostic("TFK106", message, f"write `vocab_size: {size}`, or leave it to `tfkit train`"))
        if not tokeniser.imported:
            diagnostics += _other_special_ids(plan, roles, column, absent=True)
    if diagnostics:
        raise InputError(diagnostics)


def check_special_ids(plan: ModelPlan, roles: Roles, columns: Iterable[str]) -> None:
    """Raises InputError if a model, whose vocabularies are not known yet, has other special ids than the tokenisers of recipes.
    Those that it does not set are chosen with the vocabularies."""
    if diagnostics := [fault for column in columns for fault in _other_special_ids(plan, roles, column, absent=False)]:
        raise InputError(diagnostics)


def _other_special_ids(plan: ModelPlan, roles: Roles, column: str, absent: bool) -> Iterator[Diagnostic]:
    """The special ids of the input of a column that are not those of the tokenisers of recipes, or are `absent`."""
    node = roles.of(column)
    rule = plan.token_rule(node)
    for name, written, ours in (("pad_id", rule.pad_id, PAD), ("start_id", rule.start_id, START), ("end_id", rule.end_id, END)):
        needed = absent and (name != "start_id" or (node == roles.target and roles.source is not None))
        if written != ours and (written is not None or needed):
            message = f"`{node}` has {name} {'none' if written is None else written}, the tokenisers of recipes have {ours}"
            yield Diagnostic("TFK106", message, f"write `{name}: {ours}` at the node")


USES = {
    "parallel": ("translates", "tfkit translate", "tfkit.Translator"),
    "language": ("continues a prompt", "tfkit generate", "tfkit.TextGenerator"),
    "masked": ("fills in masked tokens", "tfkit fill", "tfkit.MaskFiller"),
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
        raise other_use(plan, kind, others[0])
    return roles_of(plan, kind)


def other_use(plan: ModelPlan, kind: str, other: str) -> InputError:
    """The error of a model for data of kind `other`, not `kind`, with the right command."""
    does, command, name = USES[other]
    message = f"`{plan.name}` is no model that {USES[kind][0]}: it {does}"
    return InputError(Diagnostic("TFK107", message, f"use `{command}`, in Python {name}"))


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
