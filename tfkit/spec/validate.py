"""Pydantic judges the values; its errors are told here in the user's words, at the place where the value was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from .grammar import Grammar, inner_models, slots_of
from .hints import nearest, unknown_key, unknown_name
from .marked import HOLE, Faults, Marked, plain
from .model import ModelSpec

EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a name",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
    "is_instance_of": "another value",
    "slot_type": "a name or a mapping with `kind`",
}
BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
    "multiple_of": ("a multiple of", "multiple_of"),
}
YES_NO = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


def validate(tree: Marked, grammar: Grammar, faults: Faults) -> ModelSpec | None:
    """The spec that a resolved tree describes, or None when its values are wrong: every reason goes to `faults`."""
    try:
        return ModelSpec.model_validate(plain(tree), context={"catalogue": grammar.catalogue})
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            _tell(detail, _locate(tree, detail["loc"], grammar), grammar, faults)
        return None


@dataclass
class _Spot:
    """Where an error is: the deepest value that was written, the model that judges its fields, and the names not written."""

    node: Marked
    model: type[BaseModel] | None
    slot: str | None
    rest: tuple[int | str, ...]
    holed: bool


def _locate(tree: Marked, loc: tuple[int | str, ...], grammar: Grammar) -> _Spot:
    node, model, slot = tree, ModelSpec, None
    for index, step in enumerate(loc):
        child = _child(node, step)
        if isinstance(step, int) and child is None and not node.items:
            continue
        if child is None:
            return _Spot(node, model, slot, loc[index:], _holed(node))
        model, slot = _judge(model, slot, step, child, grammar)
        node = child
    return _Spot(node, model, slot, (), _holed(node))


def _child(node: Marked, step: int | str) -> Marked | None:
    if isinstance(step, int):
        return node.items[step] if step < len(node.items) else None
    if node.items:  # a part of a list is validated without its number
        return next((child for item in node.items if (child := item.get(step)) is not None), None)
    return node.get(step)


def _judge(model: Any, slot: str | None, step: int | str, child: Marked, grammar: Grammar) -> tuple[Any, str | None]:
    """The model, or the slot, that a child belongs to."""
    if isinstance(step, int):
        entry = grammar.find(slot, child.kind) if slot else None
        return (entry.options if entry else model), slot
    if model is ModelSpec:
        return ModelSpec if step != "nodes" else "nodes", None
    if model == "nodes" or (slot in ("node",) and model is None):
        entry = grammar.find("node", child.kind)
        return (entry.options if entry else None), "node"
    if model is None or isinstance(model, str) or step not in model.model_fields:
        return None, None
    if step == "sublayers":
        return None, "sublayer"
    inside = slots_of(model).get(step)
    if inside:
        entry = grammar.find(inside[0], child.kind or (child.value if isinstance(child.value, str) else None))
        return (entry.options if entry else None), inside[0]
    models = inner_models(model.model_fields[step])
    return (models[0] if len(models) == 1 else None), None


def _holed(node: Marked) -> bool:
    return node.value is HOLE


def _tell(error: Any, spot: _Spot, grammar: Grammar, faults: Faults) -> None:
    """Adds one error of Pydantic in our words."""
    node, kind, context = spot.node, error["type"], error.get("ctx") or {}
    if spot.holed:
        return
    name = str(error["loc"][-1]) if error["loc"] else ""
    if kind == "missing":
        where = _where_to_write(name, spot, grammar)
        faults.add("TFK030", node.mark, node.path, f"`{'.'.join(map(str, spot.rest))}` is missing", where)
    elif kind == "extra_forbidden":
        allowed = set(spot.model.model_fields) if spot.model else set()
        unknown_key(name, node, node, allowed - {name}, grammar, faults)
    elif kind == "unknown_name":
        message, fix = unknown_name(context["slot"], context["name"], grammar)
        faults.add("TFK012", (node.get("kind") or node).mark, node.path, message, fix)
    elif kind == "slot_kind":
        faults.add("TFK022", node.mark, node.path, error["msg"], "write it here, or let `defaults` name the part")
    elif kind == "one_of":
        close = nearest(str(node.value), context.get("known", []))
        code = "TFK021" if isinstance(node.value, (str, int, float)) else "TFK020"
        faults.add(code, node.mark, node.path, f"{error['msg']}, {node.shown}", f"did you mean `{close}`?" if close else "")
    elif kind in EXPECTED:
        faults.add("TFK020", node.mark, node.path, f"{EXPECTED[kind]} is expected, {node.shown}", _spelling(kind, node))
    elif kind in BOUNDS:
        words, bound = BOUNDS[kind]
        faults.add("TFK021", node.mark, node.path, f"{words} {context[bound]} is expected, {node.shown}")
    elif kind == "too_short" or kind == "string_too_short":
        faults.add("TFK021", node.mark, node.path, "it is empty", "write at least one, or leave it out")
    else:
        message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ").rstrip(".")
        shown = "" if isinstance(node.value, (dict, list)) else f", {node.shown}"
        faults.add("TFK021", node.mark, node.path, f"{message[:1].lower()}{message[1:]}{shown}")


def _spelling(kind: str, node: Marked) -> str:
    """What a value of the wrong type was probably meant to be."""
    text = node.text if isinstance(node.value, str) else ""
    if kind == "bool_type" and text.lower() in YES_NO:
        return f"write `{YES_NO[text.lower()]}`"
    if kind in ("int_type", "float_type") and text.replace("_", "").replace(",", "").lstrip("+-").isdigit():
        return f"write {text.replace('_', '').replace(',', '')}, without separators or quotes"
    return ""


def _where_to_write(name: str, spot: _Spot, grammar: Grammar) -> str:
    if spot.slot == "node":
        kind = grammar.find("node", spot.node.kind)
        return "write it here or in `defaults`" if kind and name in grammar.inherits(kind) else "write it here"
    if spot.slot == "sublayer":
        kind = grammar.find("sublayer", spot.node.kind)
        keys = " or ".join(f"`{key}`" for key in kind.option_keys) if kind else ""
        return f"write it under {keys}, here or in `defaults`"
    return "write it here"
