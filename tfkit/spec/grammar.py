"""The allowed keys of every mapping in a spec, derived from the options models of all entries in a catalogue.

The structure check, inheritance, hints and the JSON Schema read these tables, so the options of an installed plugin belong to
the language.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, get_args
from unicodedata import is_normalized

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ..attention.backend import AUTO
from ..catalogue import Catalogue
from ..slots.layer import Layer
from ..slots.node import NodeKind
from ..slots.options import LayersField, NodeRef, Options, SlotField, SlotListField, field_annotations
from ..slots.sublayer import SublayerKind, SublayerOptions
from .model import ModelSpec

TOP = ("tfkit", "name", "reference", "description", "expect", "extends", "defaults", "nodes", "outputs")
"""The keys of a spec. No node may have one of these names, so that `--set encoder.num_layers=12` is never ambiguous."""
GROUP = ("repeat", "shared", "layers")
"""The keys of a layer item that group and repeat layers; all others describe the layer."""
PATTERN = tuple(name for name in Layer.model_fields if name not in GROUP)
"""The fields that a stack, `defaults` and a layer item all take: placement, norm, position, dropout, `sublayers`."""


def is_name(text: str) -> bool:
    """Whether a node or a sub-layer may have this name. One that starts with an underscore could be an attribute of a torch
    module, and Python reads two names as one if their normal forms are equal."""
    return text.isidentifier() and not text.startswith("_") and is_normalized("NFKC", text)


class Grammar:
    """The language of a catalogue. `root` is the model of a whole file, `top` its keys."""

    def __init__(self, catalogue: Catalogue, root: type[Options] = ModelSpec, top: tuple[str, ...] = TOP) -> None:
        self.catalogue = catalogue
        self.root, self.top = root, top

    def find(self, slot: str, kind: str | None) -> Any:
        """The entry of that name, or None."""
        return self.catalogue.find(slot, kind) if kind is not None else None

    def names(self, slot: str) -> list[str]:
        """The names that are allowed in the slot."""
        names = self.catalogue.names(slot)
        return sorted([*names, AUTO.name]) if slot == "backend" else names

    @cached_property
    def node_kinds(self) -> dict[str, NodeKind]:
        return {entry.name: entry for entry in self.catalogue.entries("node")}

    @cached_property
    def option_keys(self) -> dict[str, tuple[SublayerKind, ...]]:
        """The keys that hold options of sub-layers (`attention`, `ffn`, ...), with the kinds of sub-layers that read them."""
        kinds: dict[str, tuple[SublayerKind, ...]] = {}
        for entry in self.catalogue.entries("sublayer"):
            for key in entry.option_keys:
                kinds[key] = (*kinds.get(key, ()), entry)
        return kinds

    @cached_property
    def slots(self) -> dict[str, str]:
        """The slot of every field that holds a part, by field name. A field name has one type everywhere."""
        return {name: slot for model in self.models for name, (slot, _) in slots_of(model).items()}

    @cached_property
    def lists(self) -> frozenset[str]:
        """The fields that hold one part or several in order of preference."""
        return frozenset(name for model in self.models for name, (_, several) in slots_of(model).items() if several)

    @cached_property
    def models(self) -> list[type[BaseModel]]:
        """Every options model of the catalogue, and `Layer`."""
        entries = [entry for slot in self.catalogue.registered for entry in self.catalogue.entries(slot)]
        return list(
            dict.fromkeys([*self.patterns, self.root, *(model for entry in entries for model in nested_models(entry.options))])
        )

    @property
    def patterns(self) -> list[type[BaseModel]]:
        """The model of a layer, if the language has layers."""
        return [Layer] if self.node_kinds else []

    def layers_field(self, kind: NodeKind | None) -> str | None:
        """The field with the layer pattern, if nodes of this kind are stacks."""
        return next((name for name, _ in field_annotations(kind.options, LayersField)), None) if kind else None

    @cached_property
    def layer_keys(self) -> frozenset[str]:
        """The keys of an item of `layers`."""
        return frozenset((*GROUP, *PATTERN, *self.option_keys))

    def node_keys(self, kind: NodeKind) -> frozenset[str]:
        """The keys of a node of this kind."""
        keys = {"kind", *kind.options.model_fields}
        return frozenset(keys | {"num_layers", *PATTERN, *self.option_keys}) if self.layers_field(kind) else frozenset(keys)

    def inherits(self, kind: NodeKind) -> frozenset[str]:
        """The plain defaults that reach a node of this kind, without those of its layers."""
        fields = frozenset(kind.inherits) & frozenset(kind.options.model_fields)
        return fields - {*PATTERN, *GROUP} if self.layers_field(kind) else fields

    @cached_property
    def default_keys(self) -> frozenset[str]:
        """The keys of `defaults`."""
        keys = {"norm"}
        for kind in self.node_kinds.values():
            keys |= self.inherits(kind)
            if self.layers_field(kind):
                keys |= {"num_layers", *PATTERN, *self.option_keys}
        return frozenset(keys)

    def option_fields(self, key: str) -> frozenset[str]:
        """The keys under an option key such as `attention`."""
        names = {name for kind in self.option_keys.get(key, ()) for name in kind.options.model_fields}
        return frozenset(names - {"name"})

    def references(self, kind: NodeKind | None) -> list[tuple[str, str]]:
        """The fields of a node that name other nodes, with their roles. If the kind is unknown, those of all kinds."""
        kinds = [kind] if kind else list(self.node_kinds.values())
        return list(
            dict.fromkeys(
                (name, annotation.role)
                for node_kind in kinds
                for name, annotation in field_annotations(node_kind.options, NodeRef)
            )
        )

    def _most_general(self, sublayer: SublayerKind, name: str) -> str:
        """The first option key of a sub-layer kind under which all kinds have this field."""
        for key in sublayer.option_keys:
            if all(name in kind.options.model_fields for kind in self.option_keys[key]):
                return key
        return sublayer.option_keys[-1]

    @cached_property
    def places(self) -> Mapping[str, tuple[str, ...]]:
        """Where each field belongs, as text, by its name."""
        places_by_name: dict[str, dict[str, None]] = {}

        def put(name: str, place: str) -> None:
            if name != "kind":
                places_by_name.setdefault(name, {})[place] = None

        for key in self.top:
            put(key, "the top level")
        for name in ("num_layers", *PATTERN, *self.option_keys) if self.patterns else ():
            put(name, "a `stack` node")
        for sublayer in sorted(self.catalogue.entries("sublayer"), key=_inherits_options):
            for name in sublayer.options.model_fields:
                put(name, "an item of `sublayers`" if name == "name" else f"`{self._most_general(sublayer, name)}`")
        for slot in self.catalogue.registered:
            for entry in self.catalogue.entries(slot) if slot not in ("node", "sublayer") else []:
                for name in entry.options.model_fields:
                    put(name, f"`{slot}: {{kind: {entry.name}}}`")
        for kind in self.node_kinds.values():
            for name in kind.options.model_fields:
                if name != self.layers_field(kind):
                    put(name, f"a `{kind.name}` node")
        for name in ("repeat", "shared") if self.patterns else ():
            put(name, "an item of `layers`")
        for key, field in self.root.model_fields.items():
            for model in inner_models(field):
                for name in model.model_fields:
                    put(name, f"`{key}`")
        return {name: tuple(places) for name, places in places_by_name.items()}


@lru_cache(maxsize=4)
def grammar_of(catalogue: Catalogue) -> Grammar:
    """The language of specs with the entries of a catalogue, the same object for each spec that is read with it."""
    return Grammar(catalogue)


def slots_of(model: type[BaseModel]) -> dict[str, tuple[str, bool]]:
    """The fields of a model that hold a part: their slot, and whether they hold several."""
    slots: dict[str, tuple[str, bool]] = {}
    for name, field in model.model_fields.items():
        for annotation in field.metadata:
            if isinstance(annotation, (SlotField, SlotListField)):
                slots[name] = (annotation.slot, isinstance(annotation, SlotListField))
    return slots


def inner_models(field: FieldInfo) -> list[type[Options]]:
    """The options models that a field holds, directly, in a list, or as one of several."""
    return _models_in(field.annotation)


def nested_models(model: type[Options]) -> list[type[Options]]:
    """A model and those inside it."""
    models = [model]
    for outer in models:
        models += [inner for field in outer.model_fields.values() for inner in inner_models(field) if inner not in models]
    return models


def _models_in(annotation: Any) -> list[type[Options]]:
    if isinstance(annotation, type) and issubclass(annotation, Options):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]


def _inherits_options(sublayer: SublayerKind) -> bool:
    """Whether its options are those of another kind and more, under another key: a field is first named at the other kind."""
    return sublayer.options.__mro__[1] is not SublayerOptions and len(sublayer.option_keys) == 1
