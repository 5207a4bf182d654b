"""The resolved spec: all values are inherited, all parts are looked up, and it is immutable."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PrivateAttr

from ..errors import Diagnostic, Location
from ..slots.options import AsTuple, Component, Options, SlotField
from .located import Located


class Expect(Options):
    """What the author of the spec expects; `tfkit check` compares."""

    parameters: Annotated[int | None, Field(ge=0, description="trainable parameters")] = None


class ModelSpec(Options):
    """A resolved spec. Specs with equal values are equal, wherever they were read.

    `nodes` holds the kind and the options of each node. Layer patterns have all inherited values and are not expanded.
    """

    tfkit: Annotated[int, Field(description="version of the spec language")]
    name: Annotated[str, Field(min_length=1, description="what the model is called")]
    reference: Annotated[str, Field(description="link to where the model is published")] = ""
    description: Annotated[str, Field(description="a few words about the model")] = ""
    expect: Annotated[Expect, Field(description="what the model must have")] = Expect()
    nodes: Annotated[dict[str, Annotated[Component, SlotField("node")]], Field(min_length=1, description="the nodes by name")]
    outputs: Annotated[tuple[str, ...], Field(min_length=1, description="nodes whose outputs are the model's"), AsTuple]
    _tree: Located | None = PrivateAttr(None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ModelSpec):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in ModelSpec.model_fields)

    def location_of(self, path: str) -> Location | None:
        """Where the value at a path of the resolved spec was written, or the nearest enclosing value.

        `nodes.encoder.layers.0.sublayers.0.num_heads` may point into `defaults` of a file that this one extends.
        """
        node, _ = self._find(path)
        return None if node is None else node.location

    def written_path(self, path: str) -> str:
        """The path under which that value was written, `defaults.attention.num_heads` for an inherited one."""
        node, rest = self._find(path)
        return path if node is None else ".".join([node.path, *rest] if node.path else rest)

    def diagnostic(self, code: str, path: str, message: str, fix: str = "") -> Diagnostic:
        """An error about the value at a path of the resolved spec, located where it was written."""
        return Diagnostic(code, message, fix, self.written_path(path), self.location_of(path))

    def _find(self, path: str) -> tuple[Located | None, list[str]]:
        return (self._tree, []) if self._tree is None else nearest_node(self._tree, path.split("."))


def nearest_node(tree: Located, path: list[Any]) -> tuple[Located, list[Any]]:
    """The deepest located value on a path, and the rest of the path. Keys may contain dots (`acme.conv`)."""
    for index, step in enumerate(path):
        if step == "num_layers" and "num_layers" not in tree.mapping:
            step = "layers"  # the resolved form of a stack
        if str(step).isdigit() and int(step) < len(tree.items):
            tree = tree.items[int(step)]
        elif (child := tree.get(str(step))) is not None:
            tree = child
        else:
            return tree, path[index:]
    return tree, []
