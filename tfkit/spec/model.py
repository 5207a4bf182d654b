"""The resolved spec: with all inherited values, and with parts instead of their names. It is immutable."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PrivateAttr

from ..errors import Diagnostic, Location
from ..slots.options import AsTuple, Component, Options, SlotField
from .located import Located, item_number


class Expect(Options):
    """Expected properties of the model, which `tfkit check` compares."""

    parameters: Annotated[int | None, Field(ge=0, description="trainable parameters")] = None


class ModelSpec(Options):
    """A resolved spec. Specs with equal values are equal, wherever they were read.

    `nodes` holds the kind and the options of each node. Layer patterns have all inherited values and are not expanded.
    """

    tfkit: Annotated[int, Field(description="version of the spec language")]
    name: Annotated[str, Field(min_length=1, max_length=1000, description="what the model is called")]
    reference: Annotated[str, Field(description="link to where the model is published")] = ""
    description: Annotated[str, Field(description="a few words about the model")] = ""
    expect: Annotated[Expect, Field(description="what the model must have")] = Expect()
    nodes: Annotated[dict[str, Annotated[Component, SlotField("node")]], Field(min_length=1, description="the nodes by name")]
    outputs: Annotated[
        tuple[str, ...],
        Field(min_length=1, description="nodes whose outputs are the model's, and layers of stacks as `NODE.layers`"),
        AsTuple,
    ]
    _tree: Located | None = PrivateAttr(None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ModelSpec):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in ModelSpec.model_fields)

    def location_of(self, path: str) -> Location | None:
        """The place where a value was written, or else its nearest enclosing value.

        Args:
            path: the path of the value in the resolved spec. `nodes.encoder.layers.0.sublayers.0.num_heads` may point into
                `defaults` of a file that this one extends.

        Returns:
            The location; None if the spec was not read from text or a mapping.
        """
        node, _ = self._find(path)
        return None if node is None else node.location

    def written_path(self, path: str) -> str:
        """The path under which a value was written.

        Args:
            path: the path of the value in the resolved spec.

        Returns:
            The written path, such as `defaults.attention.num_heads` for an inherited value.
        """
        node, rest = self._find(path)
        return path if node is None else ".".join([node.path, *rest] if node.path else rest)

    def origin_of(self, path: str) -> str:
        """Where a value was written, in words.

        Args:
            path: the path of the value in the resolved spec.

        Returns:
            The written path and the place, "`defaults.pad_id` at model.yaml:5:11"; empty if no place in a text holds the value.
        """
        node, rest = self._find(path)
        return "" if node is None or rest or node.location is None else f"`{node.path}` at {node.location}"

    def diagnostic(self, code: str, path: str, message: str, fix: str = "") -> Diagnostic:
        """An error about a value, located where it was written.

        Args:
            code: the stable code.
            path: the path of the value in the resolved spec.
            message: the error.
            fix: how to repair it.

        Returns:
            The located error.
        """
        return Diagnostic(code, message, fix, self.written_path(path), self.location_of(path))

    def _find(self, path: str) -> tuple[Located | None, list[str]]:
        return (self._tree, []) if self._tree is None else nearest_node(self._tree, path.split("."))


def nearest_node(tree: Located, path: list[Any]) -> tuple[Located, list[Any]]:
    """The deepest located value on a path, and the rest of the path. Keys may contain dots (`acme.conv`)."""
    for index, step in enumerate(path):
        if step == "num_layers" and "num_layers" not in tree.mapping:
            step = "layers"  # the resolved form of a stack
        number = item_number(step)
        if number is not None and number < len(tree.items):
            tree = tree.items[number]
        elif (child := tree.get(str(step))) is not None:
            tree = child
        else:
            return tree, path[index:]
    return tree, []
