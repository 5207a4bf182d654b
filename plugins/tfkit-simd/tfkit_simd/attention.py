"""Attention by the kernel in ../source/attention.h: output = softmax(scale q k^T + bias, masked) v, without gradients.

A step of decoding has one query in a row, or one for each beam, and few keys: the fixed costs of kernels for long sequences
exceed its arithmetic. Here keys that no query of a row sees, such as padding and the tokens of beams that were given up, are
not read at all. Which keys are live is the same for every layer, so `prepare` computes it once in a step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tfkit.plugin import (
    AttentionInputs,
    AttentionOutput,
    BackendRefused,
    Bias,
    Diagnostic,
    Mask,
    Prepared,
    Shapes,
    are_plain,
    dense_bias,
    expand_heads,
    require_capabilities,
    select_rows,
    shapes_of,
    unmask_empty_rows,
    visible,
)

from . import AVX2, AVX512_VNNI, SIMD, SimdOptions
from ._kernels import attend as call

check = require_capabilities(SIMD.name, SIMD.capabilities)


class Rendered(NamedTuple):
    """A mask and a bias for the kernel.

    Args:
        live: int32 (B|1, K), the keys that any query sees, in order, then the others; None if all are live.
        counts: int32 (B|1,), the number of live keys.
        added: float32 (B|1, H|1, Q|1, K), what is added to the scores of the keys in the order of `live`; None for nothing.
    """

    live: Tensor | None = None
    counts: Tensor | None = None
    added: Tensor | None = None


def prepare(mask: Mask, bias: Bias | None, shapes: Shapes, options: SimdOptions) -> Prepared:
    """Render mask and bias once, for all layers of a stack."""
    return Prepared(_render(mask, bias, shapes), with_bias=bias is not None)


def attend(inputs: AttentionInputs, options: SimdOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,D) -> (B,H,Q,D)."""
    check(inputs)
    _check_call(inputs, options)
    query, key, value = (
        tensor if tensor.stride(3) == 1 else tensor.contiguous() for tensor in (inputs.query, inputs.key, inputs.value)
    )
    prepared = inputs.prepared
    if prepared is not None and (prepared.with_bias or inputs.bias is None):
        live, counts, added = prepared.payload
    else:
        live, counts, added = _render(inputs.mask, inputs.bias, shapes_of(inputs))
    if not are_plain(query, key, value, live, counts, added):
        return in_torch(inputs)
    (B, H, Q, D), (G, K) = query.shape, key.shape[1:3]
    output = query.new_empty(B, Q, H, D)  # the output projection reads all heads of a position side by side
    lse = query.new_empty(B, H, Q) if inputs.return_lse else None
    call(
        options.instructions != "avx2" and AVX512_VNNI, inputs.scale,
        query.data_ptr(), key.data_ptr(), value.data_ptr(), output.data_ptr(), _address(lse),
        _address(live), _address(counts), _address(added),
        B, H, G, Q, K, D, live is not None and len(live) > 1,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *_broadcast_strides(added),
    )  # fmt: skip
    return AttentionOutput(output.transpose(1, 2), lse=lse)


def in_torch(inputs: AttentionInputs) -> AttentionOutput:
    """The same for transforms such as `torch.func.vmap`, for forward-mode derivatives and for modes that count operations."""
    shapes = shapes_of(inputs)
    key, value = (expand_heads(tensor, shapes.heads) for tensor in (inputs.key, inputs.value))
    scores = inputs.scale * (inputs.query @ key.mT)
    if inputs.bias is not None:
        scores = scores + dense_bias(inputs.bias, inputs.mask.offset, shapes)
    visible_pairs, rows = visible(inputs.mask, shapes), None
    if visible_pairs is not None:
        visible_pairs, rows = unmask_empty_rows(visible_pairs)
        scores = scores.masked_fill(~visible_pairs, -torch.inf)
    lse = select_rows(scores.logsumexp(-1, keepdim=True), rows, -torch.inf).squeeze(-1) if inputs.return_lse else None
    return AttentionOutput(select_rows(torch.softmax(scores, -1) @ value, rows), lse=lse)


def _check_call(inputs: AttentionInputs, options: SimdOptions) -> None:
    """Raises BackendRefused for what the kernel would compute wrongly, or read outside of a tensor."""
    tensors = (inputs.query, inputs.key, inputs.value)
    reason = None
    if not AVX2 or (options.instructions == "avx512" and not AVX512_VNNI):
        reason = "this processor lacks its instructions"
    elif not all(tensor.is_cpu and tensor.dtype == torch.float32 for tensor in tensors):
        reason = "it computes float32 on a CPU"
    elif torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        reason = "it has no backward"
    if reason is not None:
        raise BackendRefused(Diagnostic("TFK060", f"`{SIMD.name}` cannot serve this call: {reason}", "choose another backend"))


def _render(mask: Mask, bias: Bias | None, shapes: Shapes) -> Rendered:
    visible_pairs = visible(mask, shapes)
    added = None if bias is None else dense_bias(bias, mask.offset, shapes).detach().float()
    if visible_pairs is None:
        return Rendered(added=None if added is None else _whole_keys(added, shapes.keys).contiguous())
    visible_pairs = _whole_keys(visible_pairs, shapes.keys)
    alive = visible_pairs.flatten(1, 2).any(1)  # (B|1, K)
    if visible_pairs.shape[1] * visible_pairs.shape[2] > 1 and not bool(visible_pairs.all()):
        added = torch.zeros((), device="cpu") if added is None else added
        added = torch.where(visible_pairs, added.to(torch.float32), -torch.inf)
    elif added is not None:
        added = _whole_keys(added, shapes.keys)
    if bool(alive.all()):
        return Rendered(added=None if added is None else added.contiguous())
    order = (~alive).to(torch.int8).argsort(dim=1, stable=True)
    if added is not None:
        rows = max(len(added), len(order))
        added = added.expand(rows, -1, -1, -1).gather(3, order[:, None, None].expand(rows, *added.shape[1:]))
    return Rendered(order.to(torch.int32), alive.sum(1, dtype=torch.int32), added)


def _whole_keys(tensor: Tensor, keys: int) -> Tensor:
    return tensor.expand(*tensor.shape[:3], keys)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _broadcast_strides(added: Tensor | None) -> tuple[int, ...]:
    """The strides of batch row, head and query; 0 where an axis of size 1 stands for all."""
    if added is None:
        return 0, 0, 0
    return tuple(0 if size == 1 else stride for size, stride in zip(added.shape[:3], added.stride()[:3], strict=True))
