"""How a spec names a part: `norm: rms_norm` or `norm: {kind: rms_norm, eps: 1e-6}`.

Every entry has an options model, and plugins add entries, so a slot field cannot be a closed union. Its value is looked up by
name in the catalogue in Pydantic's validation context, and becomes a `Component`: the entry and its options.

    class MyOptions(Options):
        norm: Annotated[Component, SlotField("norm")] = component_default("none")
        scale: Annotated[float | str, OneOf("sqrt_d_model", number=True)] = 1.0
        input: Annotated[str, NodeRef("input")]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

CONTRACT = 1
"""Version of the contract between tfkit and its plugins. An entry states the version that it was written for."""


class Options(BaseModel):
    """Base of every options model: immutable, no unknown keys, no coercion, no NaN."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class NoOptions(Options):
    """The options model of an entry without options."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One implementation in a slot. Each slot has a subclass with further fields.

    Args:
        name: the name in specs; names of a plugin have its prefix (`acme.flash`).
        summary: one line of description.
        options: the model of its options.
        reference: a link to the paper or code that defines it.
        contract: the version of the contract that it was written for.
        source: `"package:file"`, the Jinja template of its code in a file that `tfkit eject` writes; empty: none.
    """

    name: str
    summary: str
    options: type[Options] = NoOptions
    reference: str = ""
    contract: int = CONTRACT
    source: str = ""


@dataclass(frozen=True)
class Component:
    """An entry with its options from a spec.

    Args:
        entry: the entry of the slot.
        options: an instance of the entry's options model.
    """

    entry: Any
    options: Any

    @property
    def kind(self) -> str:
        return str(self.entry.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Component) and (self.kind, self.options) == (other.kind, other.options)

    def __hash__(self) -> int:
        return hash(self.kind)

    def __str__(self) -> str:
        return self.kind

    def written(self) -> Any:
        """The shortest form in a spec.

        Returns:
            The name, or a mapping with `kind` if there are options.
        """
        options = self.options.model_dump(exclude_none=True)
        return {"kind": self.kind, **options} if options else self.kind


def _written(part: Component | None) -> Any:
    """The written form of an optional part: None for a group of layers, which has no placement of its own."""
    return None if part is None else part.written()


class Finder(Protocol):
    """The part of the catalogue that a slot field uses."""

    def find(self, slot: str, name: str) -> Entry | None: ...


@dataclass(frozen=True)
class SlotField:
    """Annotates a field whose value is an entry: a name, or a mapping with `kind` and the entry's options."""

    slot: str

    def resolve(self, value: Any, info: core_schema.ValidationInfo) -> Component:
        """Look up a written value.

        Args:
            value: a name, a mapping, or a component, which is returned unchanged.
            info: Pydantic's validation info, with the catalogue in its context.

        Returns:
            The entry with its options.

        Raises:
            PydanticCustomError: the value is invalid or the name is unknown.
        """
        if isinstance(value, Component):
            return value
        named = {"kind": value} if isinstance(value, str) else value
        if not isinstance(named, dict):
            raise PydanticCustomError("slot_type", "a name or a mapping with `kind` is expected")
        kind = named.get("kind")
        if not isinstance(kind, str):
            raise PydanticCustomError("slot_kind", "`kind` is missing: which {slot}?", {"slot": self.slot})
        if not info.context:
            raise PydanticCustomError("no_catalogue", "options with slots are validated with a catalogue as context")
        finder: Finder = info.context["catalogue"]
        entry = finder.find(self.slot, kind)
        if entry is None:
            raise PydanticCustomError("unknown_name", "unknown {slot} `{name}`", {"slot": self.slot, "name": kind})
        options = {key: item for key, item in named.items() if key != "kind"}
        return Component(entry, entry.options.model_validate(options, context=info.context))

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self.resolve, serialization=core_schema.plain_serializer_function_ser_schema(_written)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"x-slot": self.slot}


OF_LISTS = ("empty_list", "long_list", "repeated")
"""Types of the errors about a list of entries itself."""
MAX_PREFERENCES = 32
"""Entries that a field may name in order of preference. Each is checked for every site."""


@dataclass(frozen=True)
class SlotListField:
    """Annotates a field that names one entry, or several in order of preference. The value is a tuple of components."""

    slot: str

    def resolve(self, value: Any, info: core_schema.ValidationInfo) -> tuple[Component, ...]:
        """Look up a written value.

        Args:
            value: a name, a mapping, or a list of these.
            info: Pydantic's validation info, with the catalogue in its context.

        Returns:
            The entries with their options.

        Raises:
            PydanticCustomError: the list is empty, too long or has an entry twice, a value is invalid or a name is unknown.
        """
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        if not items:
            raise PydanticCustomError("empty_list", "an empty list names no {slot}", {"slot": self.slot})
        if len(items) > MAX_PREFERENCES:
            facts = {"slot": self.slot, "given": len(items), "most": MAX_PREFERENCES}
            raise PydanticCustomError("long_list", "a list of {given} {slot}s; at most {most} are possible", facts)
        parts = tuple(SlotField(self.slot).resolve(item, info) for item in items)
        for number, part in enumerate(parts):
            if part in parts[:number]:
                facts = {"kind": part.kind, "first": parts.index(part) + 1, "second": number + 1}
                raise PydanticCustomError("repeated", "`{kind}` stands in the list at {first} and at {second}", facts)
        return parts

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        def write(parts: tuple[Component, ...]) -> Any:
            return parts[0].written() if len(parts) == 1 else [part.written() for part in parts]

        return core_schema.with_info_plain_validator_function(
            self.resolve, serialization=core_schema.plain_serializer_function_ser_schema(write)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"x-slot": self.slot, "x-many": True}


class OneOf:
    """Annotates a field whose value is one of some names.

    Args:
        number: a finite number is also valid.
        flag: true and false are also valid.
    """

    def __init__(self, *names: str, number: bool = False, flag: bool = False) -> None:
        self.names, self.number, self.flag = names, number, flag

    @property
    def expected(self) -> str:
        """The choices, for a message."""
        choices = [*(["a number"] if self.number else []), *(["true", "false"] if self.flag else [])]
        return " or ".join(choices + [f"`{name}`" for name in self.names])

    def check(self, value: Any) -> Any:
        """Validate a value.

        Args:
            value: the value from a spec.

        Returns:
            The value; a number as a float.

        Raises:
            PydanticCustomError: the value is none of the choices.
        """
        if isinstance(value, bool):
            if self.flag:
                return value
        elif isinstance(value, (int, float)):
            if self.number and abs(value) < float("inf"):
                return float(value)
        elif isinstance(value, str) and value in self.names:
            return value
        raise PydanticCustomError("one_of", "{expected} is expected", {"expected": self.expected, "known": list(self.names)})

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        names = {"enum": [*self.names, *([True, False] if self.flag else [])]}
        return {"anyOf": [{"type": "number"}, names]} if self.number else names


@dataclass(frozen=True)
class NodeRef:
    """Annotates a field that names another node.

    Args:
        role: `input`; `memory`, which cross-attention reads; `owner`, whose weights are shared; or `tokens`.
    """

    role: str


@dataclass(frozen=True)
class LayersField:
    """Annotates the field of a node kind that holds a layer pattern (see `tfkit.slots.layer`)."""


def component_default(name: str) -> Any:
    """The default of a slot field.

    Args:
        name: an entry of the slot, looked up in the catalogue like a written name.

    Returns:
        The default for the annotated field.
    """
    return Field(default=name, validate_default=True)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


AsTuple = BeforeValidator(_as_tuple)
"""Converts a list to a tuple, so that options are immutable: `Annotated[tuple[int, ...], AsTuple]`."""

Size = Annotated[int, Field(ge=1, le=2**40)]
"""A count or a width: a whole number from 1."""

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
"""A dropout probability."""

Positive = Annotated[float, Field(gt=0.0)]
TokenId = Annotated[int, Field(ge=0, le=2**40)]


def field_annotations(options: type[BaseModel], kind: type) -> Iterable[tuple[str, Any]]:
    """The fields of an options model that have an annotation of one class.

    Args:
        kind: the class of the annotation, such as `SlotField`.

    Returns:
        The name and the annotation of each such field.
    """
    for name, field in options.model_fields.items():
        for annotation in field.metadata:
            if isinstance(annotation, kind):
                yield name, annotation
