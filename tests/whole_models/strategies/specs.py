"""Whole specs: tokens, one stack or two, and what is made of their output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import event, reject, strategies as st

from tfkit import Catalogue, ModelSpec, SpecError, graph_of, parse_spec
from tfkit.plugin.model_parts import PositionSite

from .layers import StackPlan, layers
from .parts import Draw, Parts

SHAPES = ("decoder", "encoder", "encoder-decoder")
WIDTHS = (8, 12, 16, 24, 6, 9)
REFUSED = "a drawn model that the rules refuse"


def model_specs(catalogue: Catalogue, shapes: Sequence[str] = SHAPES, deepest: int = 3) -> st.SearchStrategy[ModelSpec]:
    """Random valid specs of small models: at most `deepest` layers per stack, width at most 24.

    `tfkit.spec.to_yaml` prints one; in a test, `hypothesis.note(to_yaml(spec))` shows the shrunk spec that fails.
    """
    return written_models(catalogue, shapes, deepest).map(lambda written: _parsed(written, catalogue))


def written_models(catalogue: Catalogue, shapes: Sequence[str] = SHAPES, deepest: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    """The same as plain data, as a user would write them; some few break a rule of the graph."""

    @st.composite
    def drawn(draw: Draw) -> dict[str, Any]:
        return _Writer(Parts(draw, catalogue), deepest).spec(tuple(shapes))

    return drawn()


def _parsed(written: dict[str, Any], catalogue: Catalogue) -> ModelSpec:
    """The spec. A drawn model that the rules refuse is rejected, and counted among Hypothesis's events."""
    try:
        spec = parse_spec(json.dumps(written, allow_nan=False), catalogue, file="<drawn>")
        graph_of(spec)
    except SpecError as refusal:
        event(REFUSED, refusal.diagnostics[0].code)
        reject()
    return spec


class _Writer:
    """Writes one spec, node by node."""

    def __init__(self, parts: Parts, deepest: int) -> None:
        self.parts, self.deepest = parts, deepest
        self.vocabulary = parts.draw(st.integers(7, 30))
        self.init = parts.part("init") if parts.chance(40) else "xavier"
        self.nodes: dict[str, Any] = {}

    def spec(self, shapes: tuple[str, ...]) -> dict[str, Any]:
        parts, shape, width = self.parts, self.parts.one(shapes), self.parts.one(WIDTHS)
        if shape == "encoder-decoder":
            outputs = self.translator(width)
        else:
            causal = shape == "decoder"
            self.tokens("tokens", width, causal)
            self.stack("body", "tokens", StackPlan(width, causal, False, self.deepest))
            outputs = [self.pooled("body")] if not causal and parts.chance(50) else self.head("body", "tokens", width)
        return {"tfkit": 1, "name": "drawn", "nodes": self.nodes, "outputs": outputs}

    def translator(self, width: int) -> list[str]:
        """An encoder and a decoder that reads it, of one width or two, with one table or two."""
        parts = self.parts
        own = width if parts.chance(75) else parts.one(WIDTHS)
        self.tokens("source", width, False)
        self.tokens("target", own, True, share="source" if own == width and parts.chance(60) else None)
        self.stack("encoder", "source", StackPlan(width, parts.chance(10), False, self.deepest))
        memory = "encoder"
        if parts.chance(10):
            memory, self.nodes["mixed"] = (
                "mixed",
                {"kind": "layer_mix", "input": "encoder.layers", "embeddings": parts.chance(50)},
            )
        self.stack("decoder", "target", StackPlan(own, True, True, self.deepest), memory)
        return self.head("decoder", "target", own)

    def tokens(self, name: str, width: int, decoded: bool, share: str | None = None) -> None:
        parts = self.parts
        node: dict[str, Any] = {"kind": "tokens", "d_model": width, "init": self.init}
        node |= {"vocab_size": self.vocabulary} if share is None else {"share": share}
        if parts.chance(80):
            node["pad_id"] = 0
        if decoded and parts.chance(50):
            node |= {"start_id": 1, "end_id": 2}
        if parts.chance(30):
            node["scale"] = parts.one(("sqrt_d_model", 2.0))
        if parts.chance(15):
            node["segments"] = 2
        if parts.chance(25):
            node["embedding_norm"] = parts.part("norm")
        if parts.chance(60):
            scheme = parts.part(
                "position",
                lambda entry, options: (
                    not (entry.unsupported(options, PositionSite(width)) or entry.widens(options, PositionSite(width)))
                ),
                lambda entry: "embeddings" in entry.acts,
            )
            node |= {"position": scheme} if scheme else {}
        self.nodes[name] = node

    def stack(self, name: str, reads: str, plan: StackPlan, memory: str | None = None) -> None:
        node: dict[str, Any] = {"kind": "stack", "input": reads, "causal": plan.causal, "init": self.init}
        node |= {"memory": memory} if memory else {}
        node |= {"final_norm": self.parts.part("norm")} if self.parts.chance(15) else {}
        self.nodes[name] = {**node, "layers": layers(self.parts, plan)}

    def head(self, reads: str, owner: str, width: int) -> list[str]:
        """Scores over the vocabulary, tied or not, perhaps behind a dense node; or the stack itself."""
        parts = self.parts
        if parts.chance(15):
            return [reads]
        if parts.chance(20):
            self.nodes["between"] = {
                "kind": "dense",
                "input": reads,
                "activation": self.ungated(),
                "output_norm": parts.part("norm"),
            }
            reads = "between"
        node: dict[str, Any] = {"kind": "token_logits", "input": reads}
        node |= {"share": owner} if parts.chance(60) else {"vocab_size": self.vocabulary}
        if parts.chance(25):
            node["scale"] = parts.one(("inverse_sqrt_d_model", 0.5))
        if parts.chance(25):
            node["softcap"] = parts.one((30.0, 1.0))
        if parts.chance(30):
            node["bias"] = parts.one((True, "frozen"))
        self.nodes["logits"] = node
        return ["logits", reads] if parts.chance(10) else ["logits"]

    def pooled(self, reads: str) -> str:
        """One vector per row, and scores over classes."""
        parts = self.parts
        self.nodes["pooled"] = {"kind": "pool", "input": reads, "take": parts.one(("first", "last", "mean", "max"))}
        if parts.chance(50):
            return "pooled"
        self.nodes["classes"] = {"kind": "classify", "input": "pooled", "classes": 3}
        return "classes"

    def ungated(self) -> Any:
        return self.parts.part("activation", among=lambda entry: not entry.gated)
