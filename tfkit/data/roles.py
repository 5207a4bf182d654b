"""Which nodes of a model the data go to."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Fault, InputError
from ..nn.model import ModelPlan
from ..recipe import END, PAD, START


@dataclass(frozen=True)
class Roles:
    """`target` is the input whose next tokens the output `output` predicts; `source` the one that is read as a whole, None in
    a model of one input."""

    source: str | None
    target: str
    output: str

    def of(self, column: str) -> str:
        """The input node that a column of the corpus goes to."""
        return self.source if column == "source" and self.source else self.target


def roles_of(plan: ModelPlan, sources: int) -> Roles:
    """The roles of a model's nodes for data with so many source columns, 0 or 1.

    Raises InputError where the model has another number of inputs, or none of them can be predicted token by token.
    """
    decoded = [name for name in plan.inputs if name not in plan.undecodable]
    read = [name for name in plan.inputs if name in plan.undecodable]
    wanted = "a source and a target" if sources else "one input"
    if len(decoded) != 1 or len(read) != sources:
        message = (
            f"`{plan.name}` has the inputs {', '.join(plan.inputs)}, of which {', '.join(decoded) or 'none'} can be decoded"
        )
        fix = f"this data needs {wanted}; `data.kind` says what the data are"
        raise InputError(Fault("TFK107", message, fix))
    target = decoded[0]
    size = plan.inputs[target].vocab_size
    found = [name for name in plan.outputs if name in plan.followers[target] and plan.widths[name] == size]
    if len(found) != 1:
        message = f"outputs over the {size} ids of `{target}`: {', '.join(found) or 'none'}"
        raise InputError(Fault("TFK107", message, "training needs exactly one: a `token_logits` node among the outputs"))
    return Roles(read[0] if read else None, target, found[0])


def check_ids(plan: ModelPlan, roles: Roles, sizes: dict[str, int]) -> None:
    """Raises InputError where special ids or vocabularies of the model are not those of the tokenisers (`sizes` by column)."""
    faults = []
    for column, size in sizes.items():
        node = roles.of(column)
        rule = plan.inputs[node]
        if rule.vocab_size != size:
            message = f"`{node}` has a vocabulary of {rule.vocab_size:,}, its tokeniser has {size:,} ids"
            faults.append(Fault("TFK106", message, f"write `vocab_size: {size}`, or leave it to `tfkit train`"))
        for name, given, ours in (
            ("pad_id", rule.pad_id, PAD),
            ("start_id", rule.start_id, START),
            ("end_id", rule.end_id, END),
        ):
            needed = name != "start_id" or (node == roles.target and roles.source is not None)
            if given != ours and (given is not None or needed):
                message = f"`{node}` has {name} {'none' if given is None else given}, the tokenisers of recipes have {ours}"
                faults.append(Fault("TFK106", message, f"write `{name}: {ours}` at the node"))
    if faults:
        raise InputError(faults)
