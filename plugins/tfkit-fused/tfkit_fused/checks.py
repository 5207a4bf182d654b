"""Checks that the tensors of a call fit together, by name and shape, before a kernel could read beyond one of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, DenseBias, Diagnostic, DistanceBias, InputError, LinearBias

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def check_call(inputs: AttentionInputs) -> None:
    """Raises InputError with everything that does not fit."""
    if _three_tensors_fit(inputs):
        return
    wrong = list(_axes(inputs)) or list(_misfits(inputs))
    if wrong:
        raise InputError(
            [Diagnostic("TFK070", reason, "see `tfkit.attention.types` for the shapes of a call") for reason in wrong]
        )


def _three_tensors_fit(inputs: AttentionInputs) -> bool:
    """Whether a call has no tensors but query, key and value, and nothing is wrong: the shorter way of the checks below, since
    they take longer than a launch."""
    query, key, value, mask = inputs.query, inputs.key, inputs.value, inputs.mask
    if (
        mask.key_lengths is not None or mask.query_lengths is not None or mask.query_segments is not None
        or mask.key_segments is not None or mask.key_visible is not None or mask.visible is not None
        or inputs.bias is not None or isinstance(mask.offset, Tensor) or not query.dim() == key.dim() == value.dim() == 4
    ):  # fmt: skip
        return False
    (B, H, Q, D), (G, K), V = query.shape, key.shape[1:3], value.shape[3]
    return (
        B * H * Q * D * G * K * V > 0 and key.shape == (B, G, K, D) and value.shape == (B, G, K, V) and H % G == 0 and V <= 256
        and query.dtype == key.dtype == value.dtype and query.device == key.device == value.device
        and 0.0 <= inputs.dropout < 1.0 and (mask.offset is not None or not (mask.causal or mask.window is not None))
    )  # fmt: skip


def _axes(inputs: AttentionInputs) -> Iterator[str]:
    for name, tensor in (("query", inputs.query), ("key", inputs.key), ("value", inputs.value)):
        if tensor.dim() != 4:
            yield f"{name} has shape {tuple(tensor.shape)} where four axes are due"
        elif not all(tensor.shape):
            yield f"{name} has shape {tuple(tensor.shape)}: no axis may be empty"


def _misfits(inputs: AttentionInputs) -> Iterator[str]:
    (B, H, Q, D), (G, K), V = inputs.query.shape, inputs.key.shape[1:3], inputs.value.shape[3]
    mask, bias = inputs.mask, inputs.bias
    yield from _shape("key", inputs.key, (B, G, K, D), inputs.query)
    yield from _shape("value", inputs.value, (B, G, K, V), inputs.query)
    for name, tensor in (("key", inputs.key), ("value", inputs.value)):
        if tensor.dtype != inputs.query.dtype:
            yield f"{name} is {tensor.dtype} where the query is {inputs.query.dtype}"
    if V > 256:
        yield f"value dim {V} is above 256"
    if not 0.0 <= inputs.dropout < 1.0:
        yield f"dropout is {inputs.dropout} where a probability below 1 is due"
    if H % G:
        yield f"query has {H} heads, no multiple of the {G} heads of key"
    whole = (
        ("offset", mask.offset, (B,)), ("key_lengths", mask.key_lengths, (B,)), ("query_lengths", mask.query_lengths, (B,)),
        ("query_segments", mask.query_segments, (B, Q)), ("key_segments", mask.key_segments, (B, K)),
    )  # fmt: skip
    for name, tensor, shape in whole:
        if isinstance(tensor, Tensor):
            yield from _shape(f"mask.{name}", tensor, shape, inputs.query)
            if tensor.dtype not in INTEGERS:
                yield f"mask.{name} is {tensor.dtype} where integers are due"
    if (mask.query_segments is None) != (mask.key_segments is None):
        yield "mask.query_segments and mask.key_segments come together"
    if mask.key_visible is not None:
        yield from _shape("mask.key_visible", mask.key_visible, (B, K), inputs.query)
    if mask.visible is not None:
        yield from _broadcastable("mask.visible", mask.visible, (B, H, Q, K), inputs.query)
    for name, tensor in (("mask.key_visible", mask.key_visible), ("mask.visible", mask.visible)):
        if tensor is not None and tensor.dtype != torch.bool:
            yield f"{name} is {tensor.dtype} where bool is due"
    if (mask.causal or mask.window is not None or isinstance(bias, LinearBias | DistanceBias)) and mask.offset is None:
        yield "mask.offset is None, and causal, a window or a bias by distance needs one"
    if isinstance(bias, DenseBias):
        yield from _broadcastable("bias.values", bias.values, (B, H, Q, K), inputs.query)
    elif isinstance(bias, LinearBias):
        yield from _shape("bias.slopes", bias.slopes, (H,), inputs.query)
    elif isinstance(bias, DistanceBias):
        table = tuple(bias.values.shape)
        if len(table) != 2 or table[0] != H or not table[1]:
            yield f"bias.values has shape {table} where ({H}, R) is due for a query of shape {tuple(inputs.query.shape)}"
        yield from _device("bias.values", bias.values, inputs.query)


def _shape(name: str, tensor: Tensor, due: tuple[int, ...], query: Tensor) -> Iterator[str]:
    if tuple(tensor.shape) != due:
        yield f"{name} has shape {tuple(tensor.shape)} where {due} is due for a query of shape {tuple(query.shape)}"
    yield from _device(name, tensor, query)


def _broadcastable(name: str, tensor: Tensor, due: tuple[int, ...], query: Tensor) -> Iterator[str]:
    axes = zip(reversed(tensor.shape), reversed(due), strict=False)
    if tensor.dim() > 4 or any(size not in (1, wanted) for size, wanted in axes):
        shapes = f"{tuple(tensor.shape)}, which is not broadcast to {due}, for a query of shape {tuple(query.shape)}"
        yield f"{name} has shape {shapes}"
    yield from _device(name, tensor, query)


def _device(name: str, tensor: Tensor, query: Tensor) -> Iterator[str]:
    if tensor.device != query.device:
        yield f"{name} is on {tensor.device} where the query is on {query.device}"
