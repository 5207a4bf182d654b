"""The entries of the built-in activations. A gated layer is `out(f(gate(x)) * in(x))`; an entry is its f."""

from __future__ import annotations

from ...plugin import Activation

GATED = "https://arxiv.org/abs/2002.05202"
GELU = "https://arxiv.org/abs/1606.08415"


CLAIMS = {
    "relu": {"closes", "monotone", "rounds_once"},
    "gelu": {"closes", "rounds_once"},
    "gelu_tanh": {"closes", "rounds_once"},
    "quick_gelu": {"closes"},
    "silu": {"closes", "rounds_once"},
    "sigmoid": {"closes", "monotone", "rounds_once"},
    "tanh": {"monotone", "rounds_once"},
    "relu_squared": {"closes", "monotone", "rounds_once"},
    "identity": {"monotone", "rounds_once"},
}
"""The claims of each function. `quick_gelu` rounds after each of its three steps, so it does not claim `rounds_once`."""


SAVED_TENSORS = {"relu": 0, "quick_gelu": 2, "sigmoid": 0, "tanh": 0, "identity": 0}
"""Tensors that the backward pass of a function needs, without its result; 1, its input, for the others."""


SOURCE = "tfkit.builtin.activation:functions.py.jinja"


def _plain(name: str, summary: str, reference: str = "") -> Activation:
    return Activation(
        name=name,
        summary=summary,
        reference=reference,
        function=f"tfkit.builtin.activation.functions:{name}",
        source=SOURCE,
        kept=SAVED_TENSORS.get(name, 1),
        claims=lambda options: frozenset(CLAIMS[name]),
    )


def _gated(name: str, function: str, reference: str = GATED) -> Activation:
    return Activation(
        name=name,
        summary=f"gated linear unit whose gate goes through {function}",
        reference=reference,
        function=f"tfkit.builtin.activation.functions:{function}",
        source=SOURCE,
        gated=True,
        kept=SAVED_TENSORS.get(function, 1),
        claims=lambda options: frozenset(CLAIMS[function]),
    )


ENTRIES: list[Activation] = [
    _plain("relu", "max(0, x)"),
    _plain("gelu", "x times the normal distribution function at x, exact", GELU),
    _plain("gelu_tanh", "gelu by its tanh approximation (GPT-2, Gemma)", GELU),
    _plain("quick_gelu", "x sigmoid(1.702 x) (CLIP)", GELU),
    _plain("silu", "x sigmoid(x), also called swish", "https://arxiv.org/abs/1702.03118"),
    _plain("tanh", "hyperbolic tangent"),
    _plain("relu_squared", "max(0, x)^2", "https://arxiv.org/abs/2109.08668"),
    _plain("identity", "x itself"),
    _gated("glu", "sigmoid", "https://arxiv.org/abs/1612.08083"),
    _gated("reglu", "relu"),
    _gated("geglu", "gelu"),
    _gated("geglu_tanh", "gelu_tanh"),
    _gated("swiglu", "silu"),
]
