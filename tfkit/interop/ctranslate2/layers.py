"""The layers of a stack in CTranslate2's specification, filled with the weights of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ctranslate2.specs import attention_spec, common_spec, transformer_spec
from torch import Tensor

from ...slots.layer import Layer
from ...slots.options import Component
from .refusals import ACTIVATIONS, ROTARY

NORM_SITES = {"self_attention": ("input", "post_attention"), "ffn": ("pre_feedforward", "post_feedforward")}
"""The engine's names of the norms around a sub-layer, apart from cross-attention."""


def array(tensor: Tensor) -> Any:
    """A float32 copy, which the engine's quantisation may overwrite."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()


def fill_linear(there: Any, *maps: Any) -> None:
    """One or several linear maps, their outputs side by side."""
    there.weight = np.concatenate([array(linear.weight) for linear in maps])
    if any(linear.bias is not None for linear in maps):
        empty = [torch.zeros(linear.out_features, device="cpu") for linear in maps]
        there.bias = np.concatenate(
            [array(zeros if linear.bias is None else linear.bias) for linear, zeros in zip(maps, empty, strict=True)]
        )


def norm_spec(norm: Component, module: Any, width: int) -> Any:
    """A norm; without weights of its own it gets those that change nothing."""
    spec = common_spec.LayerNormSpec(rms_norm=norm.kind == "rms_norm")
    weight = getattr(module, "weight", None)
    spec.gamma = np.ones(width, np.float32) if weight is None else array(weight)
    if norm.kind == "rms_norm":
        spec.gamma += np.float32(norm.options.unit_offset and weight is not None)
    else:
        bias = getattr(module, "bias", None)
        spec.beta = np.zeros(width, np.float32) if bias is None else array(bias)
    return spec


def activation(component: Component) -> Any:
    """The engine's number of an activation."""
    return np.int8(common_spec.Activation[ACTIVATIONS[component.kind]])


def layer_spec(stack: Any, module: Any, layer: Layer, width: int) -> Any:
    """One layer of width d_model. The module of the stack may hold the layer's position table."""
    sublayers = layer.sublayers or ()
    decodes = stack.causal
    spec = transformer_spec.TransformerDecoderLayerSpec() if decodes else transformer_spec.TransformerEncoderLayerSpec()
    if decodes and len(sublayers) == 2:
        del spec.attention
    placement = layer.placement.kind if layer.placement else "none"
    for sublayer in sublayers:
        name, branch = sublayer.options.name, module.branches[sublayer.options.name]
        sublayer_spec = _ffn(branch) if sublayer.kind == "ffn" else _attention(stack, branch, sublayer, layer.position, width)
        setattr(spec, {"cross_attention": "attention"}.get(sublayer.kind, sublayer.kind), sublayer_spec)
        if placement in ("post", "pre"):
            sublayer_spec.layer_norm = norm_spec(layer.norm, module.norms[name], width)
        else:
            del sublayer_spec.layer_norm
        if placement == "sandwich":
            for site, end in zip(_sites(sublayer.kind), ("in", "out"), strict=True):
                spec.__dict__[site] = norm_spec(layer.norm, module.norms[f"{name}_{end}"], width)
    if placement == "parallel":
        by_site = {"shared": "shared_layer_norm"} | {
            sublayer.options.name: f"{site}_layer_norm"
            for sublayer, site in zip(sublayers, NORM_SITES["self_attention"], strict=True)
        }
        for name, norm in module.norms.items():
            spec.__dict__[by_site[name]] = norm_spec(layer.norm, norm, width)
    return spec


def _sites(kind: str) -> tuple[str, str]:
    if kind == "cross_attention":
        return "external_pre_encoder_attention_layer_norm", "external_post_encoder_attention_layer_norm"
    before, after = NORM_SITES[kind]
    return f"{before}_layer_norm", f"{after}_layer_norm"


def _ffn(branch: Any) -> Any:
    spec = transformer_spec.FeedForwardSpec(glu=branch.gate is not None)
    if branch.gate is not None:
        fill_linear(spec.linear_0_noact, branch.input)
    fill_linear(spec.linear_0, branch.input if branch.gate is None else branch.gate)
    fill_linear(spec.linear_1, branch.output)
    return spec


def _attention(stack: Any, branch: Any, sublayer: Component, scheme: Component, width: int) -> Any:
    options, cross = sublayer.options, sublayer.kind == "cross_attention"
    dim, norm = options.dim(width), options.query_key_norm
    spec = attention_spec.MultiHeadAttentionSpec(
        self_attention=not cross,
        num_heads_kv=options.kv_heads,
        head_dim=dim,
        sliding_window=None if options.window is None else _keys(options.window),
        qk_norm=norm.kind != "none",
        **({} if cross or scheme.kind not in ROTARY else _rotary(scheme, dim)),
    )
    spec.queries_scale = np.float32(branch.config.scale)
    maps = [branch.query, branch.key, branch.value]
    if cross:
        fill_linear(spec.linear[0], maps[0])
        fill_linear(spec.linear[1], *maps[1:])
    else:
        fill_linear(spec.linear[0], *maps)
    fill_linear(spec.linear[-1], branch.output)
    if norm.kind != "none":
        spec.q_norm, spec.k_norm = (norm_spec(norm, module, dim) for module in (branch.query_norm, branch.key_norm))
    if not cross and scheme.kind in ("relative_t5", "relative_shaw"):
        shared = branch.position_config.scheme
        table = array((branch.position if shared is None else stack.positions[shared]).table)
        if scheme.kind == "relative_t5":
            spec.__dict__["relative_attention_bias"] = table
            spec.__dict__["relative_attention_max_distance"] = np.int32(scheme.options.max_distance)
        else:
            spec.__dict__["relative_position_keys"] = table
    scaling = getattr(scheme.options, "scaling", None)
    if not cross and scaling is not None and scaling.kind == "llama3":
        low, high = scaling.turns()
        spec.rotary_low_freq_factor, spec.rotary_high_freq_factor = np.float32(low), np.float32(high)
        spec.__dict__["rotary_scaling_factor"] = np.float32(scaling.factor)
    return spec


def _keys(window: Any) -> int:
    """The keys that a query sees, itself included."""
    return int(window if isinstance(window, int) else window[0] + 1)


def _rotary(scheme: Component, dim: int) -> dict[str, Any]:
    options, scaling = scheme.options, scheme.options.scaling
    dims, base = options.dims or dim, options.base
    kind = None if scaling is None else scaling.kind
    if kind == "ntk":
        base *= scaling.factor ** (dims / (dims - 2))
    types = {"linear": attention_spec.RotaryScalingType.Linear, "llama3": attention_spec.RotaryScalingType.Llama3}
    return {
        "rotary_dim": dims,
        "rotary_interleave": ROTARY[scheme.kind],
        "rotary_base": base,
        "rotary_scaling_type": types.get(kind or ""),
        "rotary_scaling_factor": 1.0 if scaling is None else scaling.factor,
        "original_max_position_embeddings": 0 if scaling is None else scaling.trained_len or 0,
    }
