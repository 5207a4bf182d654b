"""The parts of a catalogue as factors, and a row of them as a spec: what a covering array of all parts is made of.

A part of a plugin is a value like any other. Its options are the plainest that it accepts: its defaults, else one more field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tfkit import Catalogue, ModelSpec, SpecError, graph_of, parse_spec
from tfkit.inspection import Target, check_request, request_for
from tfkit.plugin import AttentionRequest
from tfkit.plugin.model_parts import PositionSite

from .covering import Row
from .option_values import attempts, tryable

SLOTS = ("position", "activation", "placement", "init", "score", "norm", "backend")
SHAPES = ("decoder", "encoder", "encoder-decoder")
GROUPS = {"each its own": 4, "two": 2, "one": 1}
DEPTHS = ("1", "2", "2 shared")
PLAIN = {
    "position": "none", "activation": "relu", "placement": "pre", "init": "xavier", "score": "dot", "norm": "layer_norm",
    "backend": "eager", "shape": "decoder", "kv_heads": "each its own", "depth": "1", "sublayer": "none",
}  # fmt: skip
"""A row of built-in parts, all of which can meet; `none` as a further sub-layer is no part but its absence."""
STANDARD = frozenset({"self_attention", "cross_attention", "ffn"})
HEADS, WIDTH = 4, 16


def factors_of(catalogue: Catalogue) -> dict[str, Sequence[str]]:
    """The values of each factor: every part of every slot that can be tried, then the shapes of models."""
    found: dict[str, Sequence[str]] = {slot: [e.name for e in catalogue.entries(slot) if tryable(e)] for slot in SLOTS}
    found |= {"shape": SHAPES, "kv_heads": tuple(GROUPS), "depth": DEPTHS}
    more = [entry.name for entry in catalogue.entries("sublayer") if entry.name not in STANDARD and tryable(entry)]
    return {**found, "sublayer": ("none", *more)} if more else found


def untried(catalogue: Catalogue) -> list[tuple[str, str]]:
    """The parts that cannot be tried: they require an option whose values cannot be read from its type."""
    slots = (*SLOTS, "sublayer")
    return [(slot, entry.name) for slot in slots for entry in catalogue.entries(slot) if not tryable(entry)]


def refusal(row: Row, catalogue: Catalogue, device: str = "cpu") -> str:
    """Why a row cannot be, in the words of the rules; "" where it can. The backend is asked for a forward pass."""
    without = tuple(item for item in row.items() if item[0] != "backend")
    reason, requests = _asked(without, catalogue, device)
    if reason:
        return reason
    backend = catalogue.find("backend", row["backend"])
    options = next(attempts(backend, {"catalogue": catalogue}))
    for request in requests:
        verdict = check_request(backend, request, options)
        if not verdict.accepted:
            return f"{backend.name}: {verdict.refused[0]}"
    return ""


@cache
def _asked(without: tuple[tuple[str, str], ...], catalogue: Catalogue, device: str) -> tuple[str, tuple[AttentionRequest, ...]]:
    """What each site of a row asks of whichever backend; or why the row cannot be with any. Rows that differ in their backend
    alone share the answer."""
    try:
        graph = graph_of(spec_of({**dict(without), "backend": PLAIN["backend"]}, catalogue))
    except SpecError as reason:
        return reason.diagnostics[0].message, ()
    target = Target(device, None, "float32", training=False)
    return "", tuple(dict.fromkeys(request_for(site, target) for _, site in graph.sites()))


def spec_of(row: Row, catalogue: Catalogue) -> ModelSpec:
    """The model that a row says. Raises SpecError where a rule forbids it."""
    return parse_spec(json.dumps(written(row, catalogue), allow_nan=False), catalogue, file="<row>")


def written(row: Row, catalogue: Catalogue) -> dict[str, Any]:
    """The model that a row says, as a user writes it."""
    scheme = catalogue.find("position", row["position"])
    attention: dict[str, Any] = {
        "num_heads": HEADS,
        "num_kv_heads": GROUPS[row["kv_heads"]],
        "backend": _plainest(catalogue, "backend", row["backend"]),
    }
    attention["score"] = _plainest(catalogue, "score", row["score"])
    own = {"kind": "self_attention", **attention}
    read = {"kind": "cross_attention", **attention}
    ffn = {"kind": "ffn", "d_ff": 20, "activation": _plainest(catalogue, "activation", row["activation"])}
    more = row.get("sublayer", "none")
    extra = [] if more == "none" else [_plainest(catalogue, "sublayer", more)]
    init = _plainest(catalogue, "init", row["init"])

    def tokens(**words: Any) -> dict[str, Any]:
        node = {"kind": "tokens", "d_model": WIDTH, "pad_id": 0, "init": init, **words}
        return {**node, "position": _position(catalogue, scheme, PositionSite(WIDTH))} if "embeddings" in scheme.acts else node

    def stack(causal: bool, sublayers: list[Any], **edges: str) -> dict[str, Any]:
        repeat, _, shared = row["depth"].partition(" ")
        layer = {"repeat": int(repeat), "shared": bool(shared), "sublayers": sublayers,
                 "placement": _plainest(catalogue, "placement", row["placement"]),
                 "norm": _plainest(catalogue, "norm", row["norm"])}  # fmt: skip
        if scheme.acts - {"embeddings"}:
            layer["position"] = _position(catalogue, scheme, PositionSite(WIDTH, HEADS, WIDTH // HEADS, causal=causal))
        return {"kind": "stack", "causal": causal, "layers": [layer], "init": init, **edges}

    if row["shape"] == "encoder-decoder":
        nodes = {
            "source": tokens(vocab_size=17),
            "target": tokens(share="source"),
            "encoder": stack(False, [own, *extra, ffn], input="source"),
            "decoder": stack(True, [own, read, *extra, ffn], input="target", memory="encoder"),
            "logits": {"kind": "token_logits", "input": "decoder", "share": "source"},
        }
    else:
        nodes = {
            "tokens": tokens(vocab_size=17),
            "body": stack(row["shape"] == "decoder", [own, *extra, ffn], input="tokens"),
            "logits": {"kind": "token_logits", "input": "body", "share": "tokens"},
        }
    return {"tfkit": 1, "name": "row", "nodes": nodes, "outputs": ["logits"]}


def _plainest(catalogue: Catalogue, slot: str, name: str) -> Any:
    entry = catalogue.find(slot, name)
    return _said(name, next(attempts(entry, {"catalogue": catalogue})))


def _position(catalogue: Catalogue, scheme: Any, site: PositionSite) -> Any:
    """The scheme with the plainest options with which it can act at a site; the very plainest where there are none."""
    tried = list(attempts(scheme, {"catalogue": catalogue}))
    return _said(scheme.name, next((options for options in tried if not scheme.unsupported(options, site)), tried[0]))


def _said(name: str, options: Any) -> Any:
    said: Mapping[str, Any] = options.model_dump(exclude_unset=True)
    return {"kind": name, **said} if said else name
