"""Checks all inputs of one call of a model together, and finds their padding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from ...errors import Diagnostic, InputError
from ...slots.node import AnyInputRule, ImageRule, InputRule
from ..model_plan import ModelPlan
from .input_checks import check_ids, check_places, check_segments, given_padding
from .node_output import Padding
from .padding import padding_from_ids
from .real_inputs import check_features, check_images


def refuse_positional(arguments: tuple[Any, ...], plan: ModelPlan) -> None:
    """Raises InputError if a model is called with positional arguments."""
    if arguments:
        call = ", ".join(f"{name}={_example(rule)}" for name, rule in plan.inputs.items())
        message = f"`{plan.name}` got {len(arguments)} positional argument{'s' if len(arguments) > 1 else ''}"
        raise InputError(Diagnostic("TFK073", message, f"name the inputs: model({call})"))


def _example(rule: AnyInputRule) -> str:
    return "ids" if isinstance(rule, InputRule) else "images" if isinstance(rule, ImageRule) else "features"


def check_inputs(
    plan: ModelPlan,
    wanted: Iterable[str],
    inputs: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
    lengths: Mapping[str, Tensor],
    segments: Mapping[str, Tensor],
    parameter: nn.Parameter | None,
) -> dict[str, Padding]:
    """The padding of every input.

    Args:
        plan: the plan of the model.
        wanted: the input nodes that the call must have, no more and no less.
        inputs: token ids (B, L), images (B, C, H, W) or features (B, L, F) by input node.
        masks: (B, L) bool by input node, True for real tokens or frames.
        lengths: (B,) integers by input node.
        segments: (B, L) integers by input node.
        parameter: a parameter of the model, whose device the inputs must be on.

    Raises:
        InputError: inputs are missing or unknown, or do not fit the plan or each other.
    """
    wanted = list(wanted)
    if set(inputs) != set(wanted):
        missing = [name for name in wanted if name not in inputs]
        unknown = [name for name in inputs if name not in wanted]
        message = f"missing inputs: {', '.join(missing) or 'none'}; unknown inputs: {', '.join(unknown) or 'none'}"
        raise InputError(Diagnostic("TFK073", message, f"`{plan.name}` takes {', '.join(wanted)}"))
    for label, table in (("masks", masks), ("lengths", lengths), ("segments", segments)):
        for name in table:
            if name not in inputs:
                raise InputError(Diagnostic("TFK073", f"{label} name `{name}`, which is no input of this call"))
    placed = {f"`{name}`": ids for name, ids in inputs.items()}
    for label, table in (("mask", masks), ("lengths", lengths), ("segments", segments)):
        placed.update({f"{label} of `{name}`": given for name, given in table.items()})
    check_places(parameter, placed)
    first: tuple[str, int] | None = None
    for name, given in inputs.items():
        _check_input(name, given, plan.inputs[name], parameter)
        if first is not None and given.shape[0] != first[1]:
            message = f"`{name}` has {given.shape[0]} rows, `{first[0]}` has {first[1]}"
            raise InputError(Diagnostic("TFK070", message, "all inputs of one call have the same batch size"))
        first = first or (name, given.shape[0])
    padding = {name: _padding(name, ids, plan.inputs[name], masks.get(name), lengths.get(name)) for name, ids in inputs.items()}
    for name, segment in segments.items():
        rule = plan.inputs[name]
        check_segments(name, segment, inputs[name], rule.segments if isinstance(rule, InputRule) else 0)
    return padding


def _check_input(name: str, given: Tensor, rule: AnyInputRule, parameter: nn.Parameter | None) -> None:
    if isinstance(rule, InputRule):
        check_ids(name, given, rule.vocab_size)
    elif isinstance(rule, ImageRule):
        check_images(name, given, rule, parameter)
    else:
        check_features(name, given, rule, parameter)


def _padding(name: str, given: Tensor, rule: AnyInputRule, mask: Tensor | None, lengths: Tensor | None) -> Padding:
    if isinstance(rule, ImageRule):
        if mask is not None or lengths is not None:
            label = "a mask is" if lengths is None else "lengths are"
            raise InputError(Diagnostic("TFK073", f"{label} given for the images `{name}`", "images have no padding"))
        return Padding()
    padding = given_padding(name, given.shape[:2], mask, lengths)
    if padding is None:
        return padding_from_ids(given, rule.pad_id, rule.start_id) if isinstance(rule, InputRule) else Padding()
    return padding
