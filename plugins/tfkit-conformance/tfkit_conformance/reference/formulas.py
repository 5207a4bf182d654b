"""The formula of a part: the kit's for a built-in entry, the entry's own for that of a plugin.

Formulas must not come from what they check, so that of a built-in part is here, whatever its entry says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import pi, sqrt
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import Component
from tfkit.plugin.model_parts import load

from . import placements, positions


def relu(options: Any, x: Tensor) -> Tensor:
    """max(0, x)"""
    return torch.where(x > 0, x, torch.zeros_like(x))


def relu_squared(options: Any, x: Tensor) -> Tensor:
    """max(0, x)^2, So et al. 2021, section 3.1 (https://arxiv.org/abs/2109.08668)."""
    return relu(options, x) ** 2


def gelu(options: Any, x: Tensor) -> Tensor:
    """x Phi(x), with the distribution function Phi of the standard normal, Hendrycks and Gimpel 2016, section 2
    (https://arxiv.org/abs/1606.08415). erfc keeps the digits of Phi far below zero."""
    return x * 0.5 * torch.erfc(-x / sqrt(2.0))


def gelu_tanh(options: Any, x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), the approximation of the same section.

    0.5 (1 + tanh(z)) is sigmoid(2 z), which keeps its digits far below zero.
    """
    return x * sigmoid(2.0 * sqrt(2.0 / pi) * (x + 0.044715 * x**3))


def quick_gelu(options: Any, x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), the other approximation of the same section."""
    return x * sigmoid(1.702 * x)


def silu(options: Any, x: Tensor) -> Tensor:
    """x sigmoid(x), Elfwing et al. 2017, equation 9 (https://arxiv.org/abs/1702.03118)."""
    return x * sigmoid(x)


def tanh(options: Any, x: Tensor) -> Tensor:
    """(e^x - e^-x) / (e^x + e^-x)"""
    return torch.tanh(x)


def identity(options: Any, x: Tensor) -> Tensor:
    """x"""
    return x


def glu(options: Any, x: Tensor) -> Tensor:
    """sigmoid(x), Dauphin et al. 2016, equation 1 (https://arxiv.org/abs/1612.08083)."""
    return sigmoid(x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x), without overflow."""
    small = torch.exp(-x.abs())
    return torch.where(x >= 0, 1.0, small) / (1.0 + small)


GATED = frozenset({"glu", "reglu", "geglu", "geglu_tanh", "swiglu"})
"""The names that stand for a gated layer."""

ACTIVATIONS = {
    "relu": relu,
    "relu_squared": relu_squared,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": silu,
    "tanh": tanh,
    "identity": identity,
    "glu": glu,
    "reglu": relu,  # Shazeer 2020, equation 5 (https://arxiv.org/abs/2002.05202): the gate of each
    "geglu": gelu,
    "geglu_tanh": gelu_tanh,
    "swiglu": silu,
}


def layer_norm(options: Any, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """g (x - mean) / sqrt(variance + eps) + b, Ba et al. 2016, equation 4 (https://arxiv.org/abs/1607.06450)."""
    centred = x - x.mean(-1, keepdim=True)
    y = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + options.eps)
    if not options.affine:
        return y
    return y * weights["weight"] + weights["bias"] if options.bias else y * weights["weight"]


def rms_norm(options: Any, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """g x / sqrt(mean(x^2) + eps), Zhang and Sennrich 2019, equation 4 (https://arxiv.org/abs/1910.07467).

    Gemma's weight is g - 1 (`unit_offset`).
    """
    y = x / torch.sqrt((x**2).mean(-1, keepdim=True) + options.eps)
    if not options.affine:
        return y
    return y * (1.0 + weights["weight"]) if options.unit_offset else y * weights["weight"]


def batch_norm(options: Any, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """g (x - mean) / sqrt(variance + eps) + b with running statistics, Ioffe and Szegedy 2015, algorithm 2
    (https://arxiv.org/abs/1502.03167)."""
    y = (x - weights["running_mean"]) / torch.sqrt(weights["running_var"] + options.eps)
    return y * weights["weight"] + weights["bias"] if options.affine else y


def none(options: Any, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """x"""
    return x


NORMS = {"layer_norm": layer_norm, "rms_norm": rms_norm, "batch_norm": batch_norm, "none": none}


def dot(options: Any, weights: Mapping[str, Tensor], query: Tensor, key: Tensor) -> Tensor:
    """q . k, Vaswani et al. 2017, equation 1 (https://arxiv.org/abs/1706.03762); attention multiplies it by its scale."""
    return query @ key.mT


def general(options: Any, weights: Mapping[str, Tensor], query: Tensor, key: Tensor) -> Tensor:
    """q . W k, Luong et al. 2015, equation 8 (https://arxiv.org/abs/1508.04025)."""
    return (query @ weights["weight"]) @ key.mT


def additive(options: Any, weights: Mapping[str, Tensor], query: Tensor, key: Tensor) -> Tensor:
    """v . tanh(W q + U k), Bahdanau et al. 2014, appendix A.1.2 (https://arxiv.org/abs/1409.0473)."""
    of_query = (query @ weights["query.weight"].mT)[..., :, None, :]
    of_key = (key @ weights["key.weight"].mT)[..., None, :, :]
    return (torch.tanh(of_query + of_key) @ weights["out.weight"].mT)[..., 0]


def concat(options: Any, weights: Mapping[str, Tensor], query: Tensor, key: Tensor) -> Tensor:
    """v . tanh(W [q; k]), Luong et al. 2015, equation 8 (https://arxiv.org/abs/1508.04025)."""
    Q, K = query.shape[-2], key.shape[-2]
    queries = query[..., :, None, :].expand(*query.shape[:-1], K, query.shape[-1])
    keys = key[..., None, :, :].expand(*key.shape[:-2], Q, K, key.shape[-1])
    return (torch.tanh(torch.cat([queries, keys], -1) @ weights["weight"].mT) @ weights["out.weight"].mT)[..., 0]


SCORES = {"dot": dot, "general": general, "additive": additive, "concat": concat}


State = tuple[Tensor, ...]


def _of_inputs(options: Any, weights: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """W [x_0; x_1; ...] + b, for all gates."""
    total = sum(x @ weights[f"weights_ih.{i}"].mT for i, x in enumerate(inputs))
    assert isinstance(total, Tensor)
    return total + weights["bias_ih"] if options.bias else total


def _of_state(options: Any, weights: Mapping[str, Tensor], h: Tensor) -> Tensor:
    """U h + c, for all gates."""
    product = h @ weights["weight_hh"].mT
    return product + weights["bias_hh"] if options.bias else product


def rnn_tanh(options: Any, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], state: State) -> State:
    """h' = tanh(W x + U h + b), Elman 1990 (https://doi.org/10.1207/s15516709cog1402_1)."""
    return (torch.tanh(_of_inputs(options, weights, inputs) + _of_state(options, weights, state[0])),)


def rnn_relu(options: Any, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], state: State) -> State:
    """h' = max(0, W x + U h + b), Le et al. 2015 (https://arxiv.org/abs/1504.00941)."""
    return ((_of_inputs(options, weights, inputs) + _of_state(options, weights, state[0])).clamp(min=0),)


def gru_cho(options: Any, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], state: State) -> State:
    """h' = z h + (1 - z) n,  n = tanh(W x + r (U h + C c)), Cho et al. 2014, appendix A.1.2
    (https://arxiv.org/abs/1406.1078)."""
    [h] = state
    x, *contexts = inputs
    x_r, x_z, x_n = _of_inputs(options, weights, [x]).chunk(3, -1)
    total = h @ weights["weight_hh"].mT
    for number, context in enumerate(contexts, 1):
        total = total + context @ weights[f"weights_ih.{number}"].mT
    s_r, s_z, s_n = total.chunk(3, -1)
    r, z = sigmoid(x_r + s_r), sigmoid(x_z + s_z)
    return (z * h + (1 - z) * torch.tanh(x_n + r * s_n),)


def gru(options: Any, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], state: State) -> State:
    """h' = (1 - z) h + z n, Chung et al. 2014, equations 4 to 8 (https://arxiv.org/abs/1412.3555), and Bahdanau et al. 2014,
    appendix A.1.1 (https://arxiv.org/abs/1409.0473):

    r = sigmoid(W_r x + U_r h),  z = sigmoid(W_z x + U_z h),  n = tanh(W x + U (r h))
    `reset: after` is torch.nn.GRU: n = tanh(W x + b + r (U h + c)), and z stands for 1 - z: h' = z h + (1 - z) n.
    """
    [h] = state
    x_r, x_z, x_n = _of_inputs(options, weights, inputs).chunk(3, -1)
    if options.reset == "after":
        h_r, h_z, h_n = _of_state(options, weights, h).chunk(3, -1)
        r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
        n = torch.tanh(x_n + r * h_n)
        return (z * h + (1 - z) * n,)
    h_r, h_z = (h @ weights["weight_hh"].mT).chunk(2, -1)
    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
    n = torch.tanh(x_n + (r * h) @ weights["weight_hn"].mT)
    return ((1 - z) * h + z * n,)


def lstm(options: Any, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], state: State) -> State:
    """c' = f c + i g,  h' = o tanh(c'), Gers et al. 2000 (https://doi.org/10.1162/089976600300015015), without peepholes."""
    h, c = state
    i, f, g, o = (_of_inputs(options, weights, inputs) + _of_state(options, weights, h)).chunk(4, -1)
    c = sigmoid(f) * c + sigmoid(i) * torch.tanh(g)
    return sigmoid(o) * torch.tanh(c), c


CELLS = {"rnn_tanh": rnn_tanh, "rnn_relu": rnn_relu, "gru": gru, "gru_cho": gru_cho, "lstm": lstm}


class Unchecked(Exception):
    """A part has no formula."""


def formula(slot: str, entry: Any, place: str = "") -> Any:
    """The formula of an entry; of a position scheme, the one for a place where it acts.

    Raises:
        Unchecked: there is none; the message names slot and entry.
    """
    builtin = BUILT_IN[slot].get(entry.name)
    if builtin is not None:
        function = builtin[place] if place else builtin
    else:
        function = entry.formulas.get(place) if place else entry.formula
    if not function:
        raise Unchecked(f"{slot} {entry.name}")
    return _load(function) if isinstance(function, str) else function


def of(slot: str, part: Component, place: str = "") -> Any:
    """The formula of a part of a spec with its options already given."""
    function = formula(slot, part.entry, place)
    return lambda *arguments: function(part.options, *arguments)


def _load(name: str) -> Any:
    return load(name)


BUILT_IN: dict[str, dict[str, Any]] = {
    "activation": dict(ACTIVATIONS),
    "norm": dict(NORMS),
    "cell": dict(CELLS),
    "score": dict(SCORES),
    "position": dict(positions.FORMULAS),
    "placement": dict(placements.FORMULAS),
}
"""The formulas of the built-in entries, by slot and name. `sublayers` and `nodes` add theirs."""
