"""The resolved form of any correct spec loads back equal, as YAML and as JSON (a property test over random specs)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tfkit import Catalogue, parse_spec
from tfkit.spec import resolved, to_json, to_yaml

EPS = st.floats(1e-12, 0.5)
NORMS = st.sampled_from(["layer_norm", "rms_norm", "none"]) | st.builds(
    lambda kind, eps: {"kind": kind, "eps": eps}, st.sampled_from(["layer_norm", "rms_norm"]), EPS
)
POSITIONS = st.sampled_from(["none", "rotary_half", "alibi", "relative_t5"]) | st.builds(
    lambda base, dims: {"kind": "rotary_interleaved", "base": base, "dims": dims},
    st.floats(1.5, 1e9),
    st.sampled_from([None, 4]),
)
PLACEMENTS = st.sampled_from(["post", "pre", "sandwich", "deepnorm", "none", {"kind": "parallel", "norms": "separate"}])
ACTIVATIONS = st.sampled_from(["relu", "gelu", "swiglu", {"kind": "geglu"}])
DROPOUT = st.floats(0, 0.99)


def some(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping with some of these keys."""
    return st.fixed_dictionaries({}, optional=fields)


ATTENTION = some(
    num_heads=st.integers(1, 64),
    num_kv_heads=st.integers(1, 8),
    head_dim=st.none() | st.integers(1, 256),
    bias=st.booleans() | some(key=st.booleans(), output=st.booleans()),
    dropout=DROPOUT,
    scale=st.floats(0.01, 4) | st.just("inverse_sqrt_head_dim"),
    softcap=st.none() | st.floats(0.5, 50),
    window=st.none() | st.integers(1, 4096) | st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)).map(list),
    query_key_norm=NORMS,
    backend=st.sampled_from(["auto", "eager", ["sdpa", "eager"], {"kind": "sdpa"}]),
)
FFN = some(d_ff=st.integers(1, 9999), activation=ACTIVATIONS, bias=st.booleans(), dropout=DROPOUT)
SUBLAYERS = st.lists(
    st.sampled_from(["self_attention", "ffn", "acme.conv"])
    | st.builds(lambda scale: {"kind": "ffn", "residual_scale": scale}, st.floats(0.1, 2)),
    min_size=1,
    max_size=4,
)
LAYER = some(
    repeat=st.integers(1, 10**9), norm=NORMS, placement=PLACEMENTS, position=POSITIONS, dropout=DROPOUT, shared=st.booleans()
)
PATTERN = st.recursive(
    LAYER,
    lambda inner: st.builds(
        lambda layers, repeat: {"layers": layers, "repeat": repeat}, st.lists(inner, min_size=1, max_size=3), st.integers(1, 5)
    ),
    max_leaves=5,
)
STACK = some(
    final_norm=NORMS,
    checkpoint=st.booleans(),
    norm=NORMS,
    placement=PLACEMENTS,
    position=POSITIONS,
    dropout=DROPOUT,
    causal=st.booleans(),
)
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=12)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    attention = {"num_heads": 4, **draw(ATTENTION)}
    ffn = {"d_ff": 8, "activation": "relu", **draw(FFN)}
    stack = draw(STACK)
    depth = (
        {"num_layers": draw(st.integers(1, 10**12))}
        if draw(st.booleans())
        else {"layers": draw(st.lists(PATTERN, min_size=1, max_size=3))}
    )
    name = draw(st.sampled_from(["encoder", "on", "null", "y", "encodér", "한글"]))
    return {
        "tfkit": 1,
        "name": draw(WORDS),
        **draw(some(reference=WORDS, description=WORDS, expect=st.just({"parameters": 5}))),
        "defaults": {
            "norm": draw(NORMS), "placement": draw(PLACEMENTS), "attention": attention, "ffn": ffn,
            "d_model": draw(st.integers(1, 4096)), "vocab_size": 9,
        },
        "nodes": {
            "source": {"kind": "tokens", **draw(some(embedding_norm=NORMS, scale=st.floats(0.1, 9), segments=st.just(2)))},
            name: {"kind": "stack", "input": "source", **stack, **depth},
            "target": {"kind": "stack", "input": "source", "memory": name, "num_layers": 1, "cross_attention": draw(ATTENTION)},
            "mix": {"kind": "layer_mix", "input": f"{name}.layers", "embeddings": draw(st.booleans())},
            "other": {"kind": "stack", "input": "mix", "num_layers": 2, "sublayers": draw(SUBLAYERS)},
        },
        "outputs": ["target", "other", f"{name}.layers"],
    }  # fmt: skip


@pytest.mark.slow
def test_resolved_form_loads_back_equal(catalogue: Catalogue) -> None:
    # Whole specs are large to draw, which is what these two health checks complain of; all 100 are still drawn.
    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(specs())
    def holds(spec: dict[str, Any]) -> None:
        first = parse_spec(json.dumps(spec).replace("\x7f", "\\u007f"), catalogue)
        for text in (to_yaml(first), to_json(first)):
            again = parse_spec(text, catalogue)
            assert again == first
            assert resolved(again) == resolved(first)
            assert list(again.nodes) == list(first.nodes)

    holds()


def test_a_change_of_the_resolved_form_is_seen(catalogue: Catalogue, text: str) -> None:
    spec = parse_spec(text, catalogue)
    for old, new in (
        ("num_heads: 4", "num_heads: 2"),
        ("pad_id: 0", "pad_id: 1"),
        ("relu", "gelu"),
        ("name: small", "name: big"),
    ):
        assert old in to_yaml(spec)
        assert parse_spec(to_yaml(spec).replace(old, new), catalogue) != spec


def test_resolved_form_is_readable(catalogue: Catalogue, text: str) -> None:
    written = to_yaml(parse_spec(text, catalogue))
    assert "  source:\n    kind: tokens\n    d_model: 64\n" in written
    assert "norm: {kind: layer_norm, eps: 1.0e-05, bias: true, affine: true}" in written
    assert max(map(len, written.splitlines())) <= 120
    assert "null" not in written
