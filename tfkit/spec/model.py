"""The spec as every later room sees it: nothing left to inherit, every part looked up, immutable."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PrivateAttr

from ..errors import Diagnostic, Location
from ..slots.options import AsTuple, Component, Options, SlotField
from .located import Located


class Expect(Options):
    """What the spec says it will come to; `tfkit check` compares."""

    parameters: Annotated[int | None, Field(ge=0, description="trainable parameters")] = None


class ModelSpec(Options):
    """A resolved spec. Two are equal when they say the same, wherever they were read.

    `nodes` holds for every node its kind and its options: layer patterns with all that `defaults` said, unexpanded.
    """

    tfkit: Annotated[int, Field(description="version of the spec language")]
    name: Annotated[str, Field(min_length=1, description="what the model is called")]
    reference: Annotated[str, Field(description="link to where the model is published")] = ""
    description: Annotated[str, Field(description="a few words about the model")] = ""
    expect: Annotated[Expect, Field(description="what the model must come to")] = Expect()
    nodes: Annotated[dict[str, Annotated[Component, SlotField("node")]], Field(min_length=1, description="the nodes by name")]
    outputs: Annotated[tuple[str, ...], Field(min_length=1, description="nodes whose outputs are the model's"), AsTuple]
    _tree: Located | None = PrivateAttr(None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ModelSpec):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in ModelSpec.model_fields)

    def mark_of(self, path: str) -> Location | None:
        """Where the value at a path of the resolved spec was written; where nothing was, its nearest surroundings.

        `nodes.encoder.layers.0.sublayers.0.num_heads` may point into `defaults` of a file that this one extends.
        """
        node, _ = self._find(path)
        return None if node is None else node.location

    def written_path(self, path: str) -> str:
        """The path under which that value was written, `defaults.attention.num_heads` for an inherited one."""
        node, rest = self._find(path)
        return path if node is None else ".".join([node.path, *rest] if node.path else rest)

    def diagnostic(self, code: str, path: str, message: str, fix: str = "") -> Diagnostic:
        """A fault of the value at a path of the resolved spec, located where it was written."""
        return Diagnostic(code, message, fix, self.written_path(path), self.mark_of(path))

    def _find(self, path: str) -> tuple[Located | None, list[str]]:
        return (self._tree, []) if self._tree is None else nearest_node(self._tree, path.split("."))


def nearest_node(tree: Located, path: list[Any]) -> tuple[Located, list[Any]]:
    """The marked value that lies deepest on a path, and what is left of the path. Keys may hold dots (`acme.conv`)."""
    for index, step in enumerate(path):
        if step == "num_layers" and "num_layers" not in tree.mapping:
            step = "layers"  # as which a stack holds them
        if str(step).isdigit() and int(step) < len(tree.items):
            tree = tree.items[int(step)]
        elif (child := tree.get(str(step))) is not None:
            tree = child
        else:
            return tree, path[index:]
    return tree, []
