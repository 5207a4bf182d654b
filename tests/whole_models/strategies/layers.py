"""The layers of a stack: each says its placement, norm, position and sub-layers itself, so that nothing written goes unread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tfkit.inspection import SCORE_SETTINGS
from tfkit.plugin.model_parts import PositionSite, SublayerContext

from .parts import Parts

ORDERS = (
    ("self_attention", "ffn"),
    ("ffn", "self_attention"),
    ("self_attention", "self_attention", "ffn"),
    ("ffn", "self_attention", "ffn"),
    ("self_attention",),
)
READING = (
    ("self_attention", "cross_attention", "ffn"),
    ("cross_attention", "self_attention", "ffn"),
    ("self_attention", "ffn", "cross_attention"),
    ("self_attention", "cross_attention", "cross_attention", "ffn"),
)
STANDARD = frozenset({"self_attention", "cross_attention", "ffn"})


@dataclass(frozen=True)
class StackPlan:
    """What the layers of a stack must fit: its width, whether it is causal, whether it has a memory to read, and how many
    layers a token may meet in all."""

    width: int
    causal: bool
    reads: bool
    deepest: int


def layers(parts: Parts, plan: StackPlan) -> list[dict[str, Any]]:
    """A layer pattern: groups that repeat, shared ones, one of another make among equal ones."""
    found: list[dict[str, Any]] = []
    left = parts.draw(st.integers(1, plan.deepest))
    usual: dict[str, Any] | None = None
    while left > 0:
        layer = usual if usual is not None and parts.chance(40) else _layer(parts, plan)
        usual = usual or layer
        repeat = parts.draw(st.integers(1, left))
        left -= repeat
        found.append({"repeat": repeat, **({"shared": True} if parts.chance(25) else {}), **layer})
    if len(found) > 1 and parts.chance(25):
        return [{"repeat": 1, "shared": parts.chance(50), "layers": found}]
    return found


def _layer(parts: Parts, plan: StackPlan) -> dict[str, Any]:
    order = list(parts.one(READING if plan.reads else ORDERS))
    context = SublayerContext(plan.width, None, plan.causal, position=None)
    others = [
        entry.name for entry in parts.catalogue.entries("sublayer")
        if entry.name not in STANDARD and not entry.unsupported(None, context)
    ]  # fmt: skip
    if others and parts.chance(50):
        order.insert(parts.draw(st.integers(0, len(order))), parts.one(others))
    attention = _attention(parts, plan)
    sublayers = [_sublayer(parts, plan, kind, attention) for kind in order]
    sites = [_site(plan, sublayer) for sublayer in sublayers if sublayer["kind"] == "self_attention"]
    names = tuple(order)
    return {
        "placement": parts.part("placement", lambda entry, options: not entry.unsupported(options, names)),
        "norm": parts.part("norm"),
        "position": position(parts, sites) if parts.chance(70) else "none",
        "sublayers": sublayers,
    }


def position(parts: Parts, sites: list[PositionSite]) -> Any:
    """A scheme that acts inside attention and can act at every one of the sites."""
    fits = parts.part(
        "position",
        lambda entry, options: not any(entry.unsupported(options, site) for site in sites),
        lambda entry: bool(entry.acts - {"embeddings"}),
    )
    return "none" if fits is None else fits


def _sublayer(parts: Parts, plan: StackPlan, kind: str, attention: dict[str, Any]) -> dict[str, Any]:
    scaled = {"residual_scale": parts.one((0.5, 0.25, -1.0))} if parts.chance(15) else {}
    if kind == "ffn":
        bias = {"bias": False} if parts.chance(30) else {}
        return {"kind": kind, "d_ff": parts.draw(st.integers(1, 24)), "activation": parts.part("activation"), **bias, **scaled}
    if kind not in STANDARD:
        return {"kind": kind, **parts.options(parts.catalogue.find("sublayer", kind).options, leave=SAID), **scaled}
    own = dict(attention) if parts.chance(70) else _attention(parts, plan)
    if kind == "self_attention":
        return {"kind": kind, **own, **_window(parts, plan), **scaled}
    site = _site(plan, {"kind": kind, **own})
    own |= {"position": position(parts, [site])} if parts.chance(25) else {}
    return {"kind": kind, **own, **scaled}


SAID = frozenset({"name", "residual_scale", "memory"})


def _attention(parts: Parts, plan: StackPlan) -> dict[str, Any]:
    """Heads, projections and scores of one attention sub-layer."""
    if parts.chance(40):
        heads, own = parts.draw(st.integers(1, 6)), {"head_dim": parts.one((2, 4, 8, 6, 3, 1))}
    else:
        heads, own = parts.one([number for number in range(1, 9) if plan.width % number == 0]), {}
    found: dict[str, Any] = {"num_heads": heads, **own}
    if parts.chance(50):
        found["num_kv_heads"] = parts.one([number for number in range(1, heads + 1) if heads % number == 0])
    if parts.chance(40):
        found["bias"] = parts.one((False, {"key": False}, {"query": False, "output": False}))
    if parts.chance(25):
        found["query_key_norm"] = parts.part("norm", among=lambda entry: not entry.over_batch)
        if found["query_key_norm"] != "none" and parts.chance(30):
            found["query_key_norm_over"] = "all_heads"
    found |= {setting.name: parts.one(setting.examples) for setting in SCORE_SETTINGS if parts.chance(25)}
    if parts.chance(20):
        found["score"] = parts.part("score")
    elif parts.chance(20):
        found["sink"] = True
    if _kind(found.get("score", "dot")) == "dot" and parts.chance(20):
        found["scale"] = parts.one((1.0, 0.25, -0.5))
    if parts.chance(20):
        found["output_gate"] = parts.one(("elementwise", "headwise"))
    if "bias" not in found and parts.chance(20):
        found["shared_projection"] = "key_value"
    return found


def _kind(part: Any) -> str:
    """The kind of a part as a spec writes it: a name, or a mapping with `kind`."""
    return str(part["kind"] if isinstance(part, dict) else part)


def _window(parts: Parts, plan: StackPlan) -> dict[str, Any]:
    if not parts.chance(25):
        return {}
    side = st.one_of(st.integers(0, 5), st.none())
    number = plan.causal and parts.chance(60)
    return {"window": parts.draw(st.integers(1, 5)) if number else [parts.draw(side), parts.draw(side)]}


def _site(plan: StackPlan, sublayer: dict[str, Any]) -> PositionSite:
    heads, cross = sublayer["num_heads"], sublayer["kind"] == "cross_attention"
    dim = sublayer.get("head_dim") or plan.width // heads
    return PositionSite(plan.width, heads, dim, causal=plan.causal and not cross, cross=cross)
