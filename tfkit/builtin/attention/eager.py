"""Scaled dot-product attention, equation (1) of https://arxiv.org/abs/1706.03762, with every term of the contract:

    scores  = scale * query . key                       or a declared score function
    scores  = softcap * tanh(scores / softcap)          where a softcap is set
    scores  = scores + bias,   -inf where hidden
    weights = softmax_keys(scores)
    output  = dropout(weights) . value                  zero where a query sees no key

Everything is computed in float32 (float64 for float64 inputs) and rounded once, at the end. Fully masked rows are unmasked
before the softmax and set to zero after it (A5), so that no row consists of -inf only, and hidden weights and gradients are
exact zeros.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

from ...attention.rendering import no_fully_masked_row
from ...plugin import (
    AttentionInputs,
    AttentionOutput,
    Bias,
    Mask,
    NoOptions,
    Prepared,
    Shapes,
    accumulation,
    dense_bias,
    expand_heads,
    select_rows,
    shapes_of,
    unmask_empty_rows,
    visible,
)

Rendered = tuple[Tensor | None, Tensor | None, Tensor | None]
"""`hidden` (True for scores set to -inf), `rows` (False for fully masked rows) and the dense bias; each may be None. `hidden`
and the bias broadcast to (B,H,Q,K), `rows` to (B,H,Q,1)."""


def prepare(mask: Mask, bias: Bias | None, shapes: Shapes, options: NoOptions) -> Prepared:
    """Render mask and bias once, for all layers of a stack."""
    return Prepared(_render(mask, bias, shapes), with_bias=bias is not None)


def attend(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V)."""
    hidden, rows, bias = _rendered(inputs)
    dtype = inputs.query.dtype
    wide = accumulation(dtype)

    if inputs.score is None:
        scores = _by_group(inputs.scale * inputs.query.to(wide), inputs.key.to(wide).mT)  # (B,H,Q,K)
    else:
        scores = inputs.score(inputs.query, inputs.key).to(wide)
    if inputs.softcap is not None:
        scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
    if bias is not None:
        scores = scores + bias
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    weights = torch.softmax(scores, -1)

    dropped = torch.dropout(weights, inputs.dropout, True) if inputs.dropout else weights
    output = _by_group(dropped, inputs.value.to(wide))  # (B,H,Q,V)

    return AttentionOutput(
        output=select_rows(output, rows).to(dtype),
        weights=select_rows(weights, rows).to(dtype) if inputs.return_weights else None,
        lse=_log_sum_exp(scores, rows) if inputs.return_lse else None,
    )


def _by_group(rows: Tensor, shared: Tensor) -> Tensor:
    """rows (B,H,Q,N) @ shared (B,G,N,M) -> (B,H,Q,M), with the query heads of a key/value head stacked as rows (A1)."""
    if rows.shape[1] == shared.shape[1]:
        return rows @ shared
    if torch.compiler.is_exporting():  # torch.export cannot prove for every Q that the stacked rows can be split again
        return rows @ expand_heads(shared, rows.shape[1])
    grouped = rearrange(rows, "b (g r) q n -> b g (r q) n", g=shared.shape[1])
    return rearrange(grouped @ shared, "b g (r q) m -> b (g r) q m", q=rows.shape[2])


def _log_sum_exp(scores: Tensor, rows: Tensor | None) -> Tensor:
    """Natural log of the sum of exp(scores) over visible keys: (B,H,Q) float32, -inf for fully masked rows."""
    total = torch.logsumexp(scores, -1, keepdim=True)
    return select_rows(total, rows, masked=-torch.inf).squeeze(-1).to(torch.float32)


def _rendered(inputs: AttentionInputs) -> Rendered:
    prepared = inputs.prepared
    if prepared is not None and (prepared.with_bias or inputs.bias is None):
        payload: Rendered = prepared.payload
        return payload
    return _render(inputs.mask, inputs.bias, shapes_of(inputs))


def _render(mask: Mask, bias: Bias | None, shapes: Shapes) -> Rendered:
    visible_pairs = visible(mask, shapes)
    rows = None
    if visible_pairs is not None and not no_fully_masked_row(mask):
        visible_pairs, rows = unmask_empty_rows(visible_pairs)
    return (
        None if visible_pairs is None else ~visible_pairs,
        rows,
        None if bias is None else dense_bias(bias, mask.offset, shapes),
    )
