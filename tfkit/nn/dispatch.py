"""The way into a backend: check the shapes, switch autocast off, call.

Autocast is switched off because a backend's own products would be cast again: float32 attention under bf16 autocast is then
wrong by 8.7e-3 where its inputs are exact.
"""

from __future__ import annotations

import torch

from ..attention import AttentionInputs, AttentionOutput
from ..errors import Fault, InputError
from .choice import BoundBackend


def attend(backend: BoundBackend, inputs: AttentionInputs) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v by one backend: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V)."""
    _check_shapes(inputs)
    device = inputs.query.device.type
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return backend.attend(inputs, backend.options)
    return backend.attend(inputs, backend.options)


def _check_shapes(inputs: AttentionInputs) -> None:
    query, key, value = inputs.query, inputs.key, inputs.value
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        _refuse(inputs, "query, key and value have four axes each: (B,H,Q,D), (B,G,K,D), (B,G,K,V)")
    B, H, Q, D = query.shape
    G, K = key.shape[1], key.shape[2]
    if B != key.shape[0] or D != key.shape[3] or (B, G, K) != value.shape[:3] or H % G:
        _refuse(inputs, "batch, key length and head dim must agree, and key heads must divide query heads")
    if B < 1 or Q < 1 or K < 1:
        _refuse(inputs, "an empty batch or sequence has no attention")
    if not query.dtype == key.dtype == value.dtype:
        _refuse(inputs, "query, key and value have one dtype")
    mask = inputs.mask
    if mask.key_visible is not None and mask.key_visible.shape != (B, K):
        found, wanted = tuple(mask.key_visible.shape), (B, K)
        _refuse(inputs, f"mask.key_visible has shape {found}, but keys are (B, K) = {wanted}")
    if mask.offset is None and (mask.causal or mask.window is not None):
        _refuse(inputs, "a causal or window mask needs `offset`, the position of the first query")


def _refuse(inputs: AttentionInputs, rule: str) -> None:
    shapes = ", ".join(
        f"{name} {tuple(tensor.shape)} {tensor.dtype}"
        for name, tensor in (("query", inputs.query), ("key", inputs.key), ("value", inputs.value))
    )
    raise InputError(Fault("TFK070", f"attention inputs do not fit: {shapes}", rule))
