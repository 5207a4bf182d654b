"""The formulas of the built-in sub-layers: (B, L, M) -> (B, L, M), before residual and norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import Component
from tfkit.plugin.model_parts import PositionSite

from .formulas import BUILT_IN, of, sigmoid
from .values import Value, Weights, linear


@dataclass
class SublayerCall:
    """What a sub-layer reads besides its input.

    Args:
        causal: whether the stack is causal.
        visible: which positions of the sequence are real, (B, L) bool.
        memory: the memory that it attends to; None if it reads none.
        position: the position scheme of its layer.
        first_values: the values (B, G, K, V) of the first layer, by the sub-layer's name and memory; attention adds its own.
    """

    causal: bool
    visible: Tensor
    memory: Value | None
    position: Component
    first_values: dict[Any, Tensor] = field(default_factory=dict)


def attend(scores: Tensor, value: Tensor, visible: Tensor, sink: Tensor | None = None) -> Tensor:
    """softmax(scores) value over the visible keys; a query that sees no key gives zero (rule A5).

    Args:
        scores: (B, H, Q, K).
        value: (B, H, K, V).
        visible: (B, 1, Q, K) bool, or a shape that broadcasts to it.
        sink: a logit per head, (H,), which joins the softmax and has no value.
    """
    visible = visible.expand_as(scores)
    sees = visible.any(-1, keepdim=True)
    hidden = scores.masked_fill(~visible, -torch.inf)
    top = hidden.detach().amax(-1, keepdim=True)
    extra: Tensor | float = 0.0
    if sink is not None:
        logit = sink[None, :, None, None]
        top = torch.maximum(top, logit.detach())
        extra = torch.exp(logit - top)
    powers = torch.exp(hidden - top.masked_fill(~sees, 0.0))
    total = powers.sum(-1, keepdim=True) + extra
    weights = powers / torch.where(sees, total, 1.0)
    return weights.masked_fill(~visible, 0.0) @ value


def attention(options: Any, weights: Weights, x: Tensor, call: SublayerCall) -> Tensor:
    """Concat(head_1 .. head_H) W_O, head_i = softmax(scores) V, Vaswani et al. 2017, section 3.2
    (https://arxiv.org/abs/1706.03762). The order of operations is rule A2: scale, softcap, bias, mask, softmax.

    grouped heads     query head h reads key/value head h // (H / G), Ainslie et al. 2023 (https://arxiv.org/abs/2305.13245)
    query_key_norm    a norm of queries and keys before positions, Henry et al. 2020 (https://arxiv.org/abs/2010.04245)
    softcap           c tanh(score / c), Gemma 2, section 2 (https://arxiv.org/abs/2408.00118)
    sink              one more logit in the softmax, gpt-oss (https://arxiv.org/abs/2508.10925)
    output_gate       sigmoid(W_g x) times the heads, Qiu et al. 2025 (https://arxiv.org/abs/2505.06708)
    shared_projection one W for keys and values, or for queries too; without output_projection W_O is left out
    value_residual    values mixed with those of the first layer, Zhou et al. 2024 (https://arxiv.org/abs/2410.17897)
    """
    cross = call.memory is not None
    source = call.memory.tensor if call.memory is not None else x
    key_visible = call.memory.shown() if call.memory is not None else call.visible
    H, G = options.num_heads, options.num_kv_heads or options.num_heads
    Q, K = x.shape[1], source.shape[1]
    query = linear(weights, "query", x)
    key, value = (linear(weights, options.matrix(tensor), source) for tensor in ("key", "value"))
    D = query.shape[-1] // H
    scheme = options.position if cross else call.position
    site = PositionSite(x.shape[-1], H, D, causal=call.causal and not cross, cross=cross)
    normed, over_heads = of("norm", options.query_key_norm), options.query_key_norm_over == "all_heads"
    if over_heads:
        query, key = normed(weights.under("query_norm"), query), normed(weights.under("key_norm"), key)
    query, key, value = _heads(query, H), _heads(key, G), _heads(value, G)
    if not over_heads:
        query, key = normed(weights.under("query_norm"), query), normed(weights.under("key_norm"), key)
    value = _with_first_values(options, weights, value, call)
    at_query, at_key = torch.arange(Q, device=x.device), torch.arange(K, device=x.device)
    if "queries_keys" in scheme.entry.acts:
        rotate = of("position", scheme, "queries_keys")
        query = rotate(site, weights.under("position"), query, at_query)
        key = rotate(site, weights.under("position"), key, at_key)
    key, value = key.repeat_interleave(H // G, 1), value.repeat_interleave(H // G, 1)

    scale = 1.0
    if options.score.kind == "dot":
        scale = options.scale if isinstance(options.scale, float) else D**-0.5
    scores = scale * of("score", options.score)(weights.under("score"), query, key)
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    distances = at_key[None, :] - at_query[:, None]
    if "scores" in scheme.entry.acts:
        scores = scores + of("position", scheme, "scores")(site, weights.under("position"), query, distances, scale)
    visible = key_visible[:, None, None, :] & _allowed(options.window, call.causal and not cross, distances)
    heads = attend(scores, value, visible, weights["sink"] if options.sink else None)
    if options.output_gate != "none":
        gate = sigmoid(linear(weights, "gate", x))
        heads = heads * (_heads(gate, H) if options.output_gate == "elementwise" else gate.mT[..., None])
    heads = heads.transpose(1, 2).flatten(2)
    return linear(weights, "output", heads) if options.output_projection else heads


def _heads(x: Tensor, heads: int) -> Tensor:
    """(B, L, H D) -> (B, H, L, D)"""
    return x.reshape(*x.shape[:-1], heads, -1).transpose(1, 2)


def _with_first_values(options: Any, weights: Mapping[str, Tensor], value: Tensor, call: SublayerCall) -> Tensor:
    """The mean of the values and those of the first layer, or a V_first + b V with learned a and b."""
    memory = getattr(options, "memory", None)
    first = call.first_values.setdefault((options.name, memory), value)
    if options.value_residual == "mean":
        return (value + first) / 2
    if options.value_residual == "learned":
        factors = weights["value_residual.weight"]
        return factors[0] * first + factors[1] * value
    return value


def _allowed(window: Any, causal: bool, distances: Tensor) -> Tensor:
    """Which keys a query sees by their positions (rule A4), (Q, K)."""
    allowed = distances <= 0 if causal else torch.ones_like(distances, dtype=torch.bool)
    if window is None:
        return allowed
    left, right = (window - 1, 0) if isinstance(window, int) else window
    if left is not None:
        allowed = allowed & (distances >= -left)
    if right is not None:
        allowed = allowed & (distances <= right)
    return allowed


def ffn(options: Any, weights: Mapping[str, Tensor], x: Tensor, call: SublayerCall) -> Tensor:
    """W_2 f(W_1 x + b_1) + b_2, Vaswani et al. 2017, equation 2 (https://arxiv.org/abs/1706.03762); with a gate
    W_2 (f(W_g x) * W_1 x), Shazeer 2020, equation 6 (https://arxiv.org/abs/2002.05202)."""
    f = of("activation", options.activation)
    inner = linear(weights, "input", x)
    inner = f(linear(weights, "gate", x)) * inner if options.activation.entry.gated else f(inner)
    return linear(weights, "output", inner)


def ssru(options: Any, weights: Weights, x: Tensor, call: SublayerCall) -> Tensor:
    """f_t = sigmoid(W_f x_t + b_f), c_t = f_t c_{t-1} + (1 - f_t) W x_t, o_t = max(c_t, 0), Kim et al. 2019
    (https://aclanthology.org/D19-5632), one token after the other. Padding leaves c as it is."""
    gates, new = sigmoid(linear(weights, "forget", x)), linear(weights, "input", x)
    state, states = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        step = gates[:, t] * state + (1 - gates[:, t]) * new[:, t]
        state = torch.where(call.visible[:, t, None], step, state)
        states.append(state)
    return torch.stack(states, 1).clamp(min=0.0)


def average_attention(options: Any, weights: Weights, x: Tensor, call: SublayerCall) -> Tensor:
    """g_t = FFN(1/t sum of x_1 .. x_t), [i_t; f_t] = sigmoid(W [x_t; g_t] + b), o_t = i_t x_t + f_t g_t, Zhang et al. 2018,
    section 3 (https://aclanthology.org/P18-1166). Padding is not in the mean."""
    means = []
    for t in range(x.shape[1]):
        seen = call.visible[:, : t + 1, None].to(x.dtype)
        means.append((x[:, : t + 1] * seen).sum(1) / seen.sum(1).clamp(min=1.0))
    read = ffn(options, weights.under("ffn"), torch.stack(means, 1), call)
    if not options.gate:
        return read
    of_token, of_mean = sigmoid(linear(weights, "gate", torch.cat([x, read], 2))).chunk(2, 2)
    return of_token * x + of_mean * read


BUILT_IN["sublayer"] = {
    "self_attention": attention,
    "cross_attention": attention,
    "ffn": ffn,
    "ssru": ssru,
    "average_attention": average_attention,
}
