"""Validates the values with Pydantic, and translates its errors into located errors in the words of the spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unicodedata import decimal

from pydantic import BaseModel, ValidationError

from ..errors import Diagnostic, PluginError
from .grammar import Grammar, inner_models, slots_of
from .hints import nearest, unknown_key, unknown_name, which_kind
from .located import INVALID, Diagnostics, Located, plain, short

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


def validate(tree: Located, grammar: Grammar, diagnostics: Diagnostics) -> Any:
    """The object of the grammar's root model that a resolved tree describes, or None if values are invalid. The errors are
    added to `diagnostics`."""
    try:
        return grammar.root.model_validate(plain(tree), context={"catalogue": grammar.catalogue})
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        for detail in sorted(
            details, key=lambda entry: entry["type"] != "extra_forbidden"
        ):  # so that a misspelt key is not reported as missing too
            _report(detail, *_locate(tree, detail["loc"], grammar), grammar, diagnostics)
        return None
    except Exception as reason:  # an options model is code of a plugin
        raise PluginError(_plugin_diagnostic(reason)) from reason


def _plugin_diagnostic(reason: Exception) -> Diagnostic:
    trace = reason.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "?") if trace else "?"
    message = f"an options model raised {type(reason).__name__}: {reason}, in {module}"
    return Diagnostic("TFK055", message, "an options model refuses a value with ValueError")


@dataclass(frozen=True)
class _Place:
    """A written value: a part of `slot` whose fields `model` validates, or a container of parts of the slot `holds`."""

    node: Located
    model: type[BaseModel] | None = None
    slot: str | None = None
    holds: str | None = None

    def child(self, step: int | str, grammar: Grammar) -> _Place | None:
        """The place of a child, or None if it is not written."""
        node = _child(self.node, step)
        if node is None:
            return None
        if self.holds:
            return _part(node, self.holds, grammar)
        if isinstance(step, int):
            return _Place(node, self.model)
        if self.model is None or step not in self.model.model_fields:
            return _Place(node)
        if step in HOLDERS:
            return _Place(node, holds=HOLDERS[step])
        slots = slots_of(self.model)
        if step in slots:
            return _part(node, slots[step][0], grammar)
        models = inner_models(self.model.model_fields[step])
        return _Place(node, models[0] if len(models) == 1 else None)


HOLDERS = {"nodes": "node", "sublayers": "sublayer"}


def _part(node: Located, slot: str, grammar: Grammar) -> _Place:
    entry = grammar.find(slot, node.kind)
    return _Place(node, entry.options if entry else None, slot)


def _child(node: Located, step: int | str) -> Located | None:
    if isinstance(step, int):
        return node.items[step] if step < len(node.items) else None
    if node.items:  # Pydantic reports no index for a part in a list
        return next((child for item in node.items if (child := item.get(step)) is not None), None)
    return node.get(step)


def _locate(tree: Located, loc: tuple[int | str, ...], grammar: Grammar) -> tuple[_Place, _Place, tuple[int | str, ...]]:
    """The deepest written place on the path of an error, the enclosing place, and the steps that are not written."""
    place = around = _Place(tree, grammar.root)
    for index, step in enumerate(loc):
        child = place.child(step, grammar)
        if child is None:
            return place, around, loc[index:]
        place, around = child, place
    return place, around, ()


def _report(
    error: Any, place: _Place, around: _Place, rest: tuple[int | str, ...], grammar: Grammar, diagnostics: Diagnostics
) -> None:
    """Adds one error of Pydantic in the words of the spec."""
    node, kind, context = place.node, error["type"], error.get("ctx") or {}
    name = str(error["loc"][-1]) if error["loc"] else ""
    if node.value is INVALID or (kind == "missing" and name in diagnostics.meant):
        return
    if kind == "missing":
        where = _where_to_write(name, place, grammar)
        diagnostics.add("TFK030", node.location, node.path, f"`{'.'.join(map(str, rest))}` is missing", where)
    elif kind == "extra_forbidden":
        allowed = set(around.model.model_fields) if around.model else set()
        path = node.path.rpartition(".")[0]
        unknown_key(name, node, path, allowed, grammar, diagnostics, near_keys=around.slot == "sublayer")
    elif kind == "unknown_name":
        message, fix = unknown_name(context["slot"], context["name"], grammar)
        diagnostics.add("TFK012", (node.get("kind") or node).location, node.path, message, fix)
    elif kind == "slot_kind":
        diagnostics.add("TFK022", node.location, node.path, "`kind` is missing", which_kind(context["slot"], grammar))
    elif kind == "one_of":
        close = nearest(str(node.value), context.get("known", []))
        code = "TFK021" if isinstance(node.value, (str, int, float)) else "TFK020"
        diagnostics.add(
            code, node.location, node.path, f"{error['msg']}, {node.shown}", f"did you mean `{close}`?" if close else ""
        )
    elif kind in EXPECTED:
        expected = "text" if node.path in ("reference", "description") else EXPECTED[kind]
        diagnostics.add("TFK020", node.location, node.path, f"{expected} is expected, {node.shown}", _spelling(kind, node))
    elif kind in BOUNDS:
        words, bound = BOUNDS[kind]
        diagnostics.add("TFK021", node.location, node.path, f"{words} {context[bound]} is expected, {node.shown}")
    elif kind == "string_too_long":
        message = f"at most {context['max_length']:,} characters are expected, and there are {len(node.value):,}"
        diagnostics.add("TFK021", node.location, node.path, message)
    elif kind in ("too_short", "string_too_short"):
        if len(node.items) < context["min_length"]:  # Pydantic counts only the valid items
            field = around.model.model_fields.get(name) if around.model else None
            fix = "write at least one" if field and field.is_required() else "write at least one, or leave it out"
            diagnostics.add("TFK021", node.location, node.path, "it is empty", fix)
    else:
        message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ").rstrip(".")
        ending = "" if isinstance(node.value, (dict, list)) else f", {node.shown}"
        diagnostics.add("TFK021", node.location, node.path, short(f"{message[:1].lower()}{message[1:]}{ending}", 400))


def _spelling(kind: str, node: Located) -> str:
    """A fix for a value of the wrong type, if its meaning is clear."""
    if node.value is None:
        return "write a value, or leave the key out"
    text = node.text if isinstance(node.value, str) else ""
    if kind == "bool_type" and text.lower() in YES_NO:
        return f"write `{YES_NO[text.lower()]}`"
    digits = "".join(str(decimal(sign, sign)) for sign in text if sign not in "_,")
    if kind in ("int_type", "float_type") and digits.lstrip("+-").isdecimal():
        return f"write {digits}, " + ("without separators or quotes" if text.isascii() else "in the digits 0 to 9")
    return ""


def _where_to_write(name: str, place: _Place, grammar: Grammar) -> str:
    if place.slot == "node":
        kind = grammar.find("node", place.node.kind)
        return "write it here or in `defaults`" if kind and name in grammar.inherits(kind) else "write it here"
    if place.slot == "sublayer":
        kind = grammar.find("sublayer", place.node.kind)
        keys = " or ".join(f"`{key}`" for key in kind.option_keys) if kind else ""
        return f"write it under {keys}, here or in `defaults`"
    return "write it here"
