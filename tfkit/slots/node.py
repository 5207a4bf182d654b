"""Node kind: a node of the model graph (tokens, stack, dense, token_logits, ...), with its edges and its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .cost import Cost, Sizes
from .options import Entry
from .parameter import Parameter, ParameterGroup
from .placement import StackFacts
from .sublayer import AttentionSite


@dataclass(frozen=True)
class Signal:
    """What flows along an edge, without numbers: `axes` are names for sizes of a batch (`B`, `L_source`) and whole numbers
    for fixed ones. `length` is the axis name of a sequence, None once it is pooled; `depth` is the number of layers of the
    stack it came from (so that a mix can read them); `tokens` names the tokens node at its start."""

    axes: tuple[str | int, ...]
    length: str | None = None
    depth: int = 0
    tokens: str | None = None

    @property
    def width(self) -> int:
        width = self.axes[-1]
        assert isinstance(width, int)
        return width

    def wide(self, width: int) -> Signal:
        """The same sequence with another width."""
        return Signal((*self.axes[:-1], width), self.length, 0, self.tokens)


@dataclass(frozen=True)
class NodeFacts:
    """What surrounds a node: the signals on its edges by field (`input`, `memory`, ...; `memories` by node reference for
    sub-layers that name one), the options of the node whose weights it shares, and for a stack its part in the model."""

    name: str
    signals: Mapping[str, Signal] = field(default_factory=dict)
    memories: Mapping[str, Signal] = field(default_factory=dict)
    owner: Any = None
    stack: StackFacts | None = None


Rule = tuple[str, str, str]
"""A broken rule: (path below the node, the rule with its numbers, the fix)."""


@dataclass(frozen=True, kw_only=True)
class NodeKind(Entry):
    """The fields of `options` that carry a `NodeRef` are the node's edges. `inherits` lists the fields that `defaults` reach;
    `ports` the further outputs another node may read as `node.port`. `output(options, facts)` is its signal,
    `parameters`, `costs(options, facts, sizes of each signal by field)` and `sites` describe it, `rules` gives every broken
    cross-field rule. `takes_ids` marks an input of the model. `build`, a `"module:function"`, is called as
    `build(options, facts)` and gives an `nn.Module` with `forward(run, **signals) -> tfkit.nn.model.Stream`."""

    inherits: frozenset[str]
    output: Callable[[Any, NodeFacts], Signal]
    build: str
    ports: tuple[str, ...] = ()
    takes_ids: bool = False
    parameters: Callable[[Any, NodeFacts], tuple[Parameter | ParameterGroup, ...]] = lambda options, facts: ()
    costs: Callable[[Any, NodeFacts, Mapping[str, Sizes]], tuple[Cost, ...]] = lambda options, facts, sizes: ()
    sites: Callable[[Any, NodeFacts], tuple[tuple[tuple[str, ...], AttentionSite], ...]] = lambda options, facts: ()
    rules: Callable[[Any, NodeFacts], tuple[Rule, ...]] = lambda options, facts: ()
