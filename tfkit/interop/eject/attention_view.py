"""The variables of the template of multi-head attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...graph import Graph
from ...slots.layer import leaves
from ...slots.options import Component
from ...slots.score import ScoreSite
from ...slots.sublayer import SublayerContext
from .source_file import BoundPart, Refused, SourceFile

ATTENTION = ("self_attention", "cross_attention")
SIZES = {
    "name",
    "memory",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "value_dim",
    "window",
    "backend",
    "residual_scale",
    "position",
}
"""Options that do not change the code of attention, or change only its sizes."""


class Use(NamedTuple):
    """One use of attention in the model: what its code depends on, apart from its role and whether there is a mask."""

    features: str
    cross: bool
    masked: bool


@dataclass(frozen=True)
class AttentionPlace:
    """Where attention is used.

    Args:
        use: what its code depends on.
        uses: all uses in the model.
        memory: the variable that holds the memory; empty for self-attention.
        mask: the variable that holds the mask; empty without a mask.
        scheme: the position scheme of the stack or of the site, if it acts in attention.
        own_scheme: the site has tables of its own.
    """

    use: Use
    uses: tuple[Use, ...]
    memory: str
    mask: str
    scheme: Component | None
    own_scheme: bool


def use_of(sublayer: Component, context: SublayerContext) -> Use:
    """What the code of one attention depends on."""
    o = sublayer.options
    cross = sublayer.kind == "cross_attention"
    scheme = None if cross else context.position
    acts = scheme is not None and bool(scheme.entry.acts & {"queries_keys", "scores"})
    other = context.memory_width if cross and context.memory_width not in (None, context.width) else 0
    features = (
        o.model_dump_json(exclude=SIZES), o.kv_heads != o.num_heads, o.values(context.width) != o.dim(context.width),
        scheme.kind if acts and scheme is not None else "", other,
    )  # fmt: skip
    windowed = o.window is not None
    return Use(repr(features), cross, context.padded or windowed or (context.causal and not cross))


def uses_in(graph: Graph) -> tuple[Use, ...]:
    """Every use of attention in the stacks of a model."""
    return tuple(_uses(graph))


def _uses(graph: Graph) -> Iterator[Use]:
    from ...builtin.node.stack_entry import sublayer_context

    for node in graph.nodes.values():
        if node.part.kind == "stack":
            for leaf in leaves(node.options.layers):
                for sublayer in leaf.layer.sublayers or ():
                    if sublayer.kind in ATTENTION:
                        yield use_of(sublayer, sublayer_context(node.options, node.context, leaf.layer, sublayer))


class AttentionView:
    """Names, arguments and parts of one multi-head attention."""

    def __init__(self, file: SourceFile, o: Any, c: SublayerContext, place: AttentionPlace) -> None:
        use, alike = place.use, [attention_use for attention_use in place.uses if attention_use.features == place.use.features]
        if o.value_residual != "none":
            raise Refused("`value_residual`")
        if use.cross and o.position.entry.acts:
            raise Refused("a position scheme of cross-attention")
        both = len({attention_use.cross for attention_use in alike}) == 2
        roles = {attention_use.cross for attention_use in place.uses}
        self.place, self.both = place, both
        self.title = "MultiHeadAttention" if both or len(roles) == 1 else "CrossAttention" if use.cross else "SelfAttention"
        self.reads_other = "memory" if both or use.cross else "x"
        masks = {attention_use.masked for attention_use in alike}
        self.masked: bool | str = "optional" if len(masks) == 2 else use.masked
        self.other_width = bool(use.cross and c.memory_width not in (None, c.width))
        sizes = {"d_model": c.width, "num_heads": o.num_heads, "head_dim": o.dim(c.width)}
        if o.kv_heads != o.num_heads:
            sizes["num_kv_heads"] = o.kv_heads
        if o.values(c.width) != o.dim(c.width):
            sizes["value_dim"] = o.values(c.width)
        if self.other_width:
            sizes["d_memory"] = c.memory_width or c.width
        self.sizes = sizes
        scheme = place.scheme
        self.rotates = scheme is not None and "queries_keys" in scheme.entry.acts
        self._scheme = BoundPart(file, scheme, _position_site(o, c)) if scheme is not None else None
        self.own_scheme = self._scheme if place.own_scheme else None
        biased = scheme is not None and not place.own_scheme and "scores" in scheme.entry.acts
        self.reads_query = self._scheme is not None and self._scheme.offers("query_bias")
        self.score = _score(file, o, c)
        names = ["x", *(["memory"] if self.reads_other == "memory" else []), *(["rotation"] if self.rotates else []),
                 *(["bias"] if biased else [])]  # fmt: skip
        types = {"rotation": "tuple[Tensor, Tensor]", "bias": "nn.Module" if self.reads_query else "Tensor"}
        self._names = names
        mask = {"optional": ["mask: Tensor | None = None"], True: ["mask: Tensor"], False: []}[self.masked]
        self.signature = ", ".join(["self", *(f"{name}: {types.get(name, 'Tensor')}" for name in names), *mask])
        if "memory" in names:
            mark = " where the mask is True" if self.masked else ""
            self.doc = f"x (B, Q, M) reads the memory (B, K, M){mark} -> (B, Q, M)."
        else:
            self.doc = f"(B, L, M) -> (B, L, M){'; queries see the keys where the mask is True' if self.masked else ''}."
        self.needs: list[str] = [name for name in ("rotation", "bias") if name in names]
        self.needs += [place.memory] if place.memory else []
        self.needs += [place.mask] if place.mask else []

    def arguments(self, x: str) -> str:
        """The arguments of a call with the queries x."""
        expressions = {"x": x, "memory": self.place.memory or x}
        return ", ".join(
            [*(expressions.get(name, name) for name in self._names), *([self.place.mask] if self.place.mask else [])]
        )

    @property
    def position_bias(self) -> str:
        """What the position scheme adds to the scores; empty without one."""
        if self.own_scheme is None:
            return ("bias(query)" if self.reads_query else "bias") if "bias" in self._names else ""
        if self.reads_query:
            return self.own_scheme.called("query_bias", "self.position", "query")
        return self.own_scheme.called("bias", "self.position", "x.shape[1]")

    def rotate(self, x: str) -> str:
        assert self._scheme is not None
        return self._scheme.rotate(x)


def _position_site(o: Any, c: SublayerContext) -> Any:
    from ...builtin.sublayer.entries import position_site

    return position_site(o, c)


def _score(file: SourceFile, o: Any, c: SublayerContext) -> str:
    """The constructor of the score function; empty for the dot product."""
    if o.score.entry.build is None:
        return ""
    return BoundPart(file, o.score, ScoreSite(o.num_heads, o.dim(c.width))).new()
