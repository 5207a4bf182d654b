"""Test doubles of FlashAttention's three packages: their signatures in plain torch, for the adaptor's logic alone.

Nothing here says anything about the real kernels. Written from the docstrings of `flash_attn_interface.py`: tensors
(B, L, H, D), or packed (tokens, H, D); causality and windows aligned to the last key, -1 (None in version 4) leaving a side
open; ALiBi -slope |i + K - Q - j|.
"""

from __future__ import annotations

import types
from importlib.machinery import ModuleSpec

import torch

from flash_stand_in import dense, packed


class LosesTheGradientOfTheLse(torch.autograd.Function):
    """Versions 2 and 3 hand out the log-sum-exp beside the output and drop its gradient."""

    @staticmethod
    def forward(ctx, lse):
        return lse.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros_like(gradient)


def told(found, wanted, *more):
    output, lse = found
    return (output, LosesTheGradientOfTheLse.apply(lse), *more) if wanted else output


def v2_dense(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False,
):  # fmt: skip
    assert not (softcap and dropout_p)
    found = dense(q, k, v, scale=softmax_scale, causal=causal, window=window_size, softcap=softcap, slopes=alibi_slopes,
                  dropout=dropout_p)  # fmt: skip
    return told(found, return_attn_probs, None)


def v2_packed(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None,
):  # fmt: skip
    assert not (softcap and dropout_p)
    found = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale=softmax_scale, causal=causal,
                   window=window_size, softcap=softcap, slopes=alibi_slopes, dropout=dropout_p)  # fmt: skip
    return told(found, return_attn_probs, None)


def v3_dense(
    q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1),
    attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False,
):  # fmt: skip
    found = dense(q, k, v, scale=softmax_scale, causal=causal, window=window_size, softcap=softcap)
    return told(found, return_attn_probs)


def v3_packed(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None, softmax_scale=None,
    causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0,
    num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False,
):  # fmt: skip
    found = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale=softmax_scale, causal=causal,
                   window=window_size, softcap=softcap)  # fmt: skip
    return told(found, return_attn_probs)


def v4_dense(
    q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None,
    softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None,
    aux_tensors=None, aux_scalars=None, block_sparse_tensors=None, block_sparse_tensors_bwd=None, return_lse=False,
):  # fmt: skip
    output, lse = dense(q, k, v, scale=softmax_scale, causal=causal, window=window_size, softcap=softcap)
    return output, lse if return_lse else None


def v4_packed(
    q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, min_seqlen_k=None,
    seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None, softmax_scale=None, causal=False,
    window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
    score_mod=None, score_mod_bwd=None, mask_mod=None, block_sparse_tensors=None,
    aux_tensors=None, aux_scalars=None, return_lse=False,
):  # fmt: skip
    output, lse = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale=softmax_scale, causal=causal,
                         window=window_size, softcap=softcap)  # fmt: skip
    return output, lse if return_lse else None


def _module(name, dense_function, packed_function):
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.flash_attn_func, module.flash_attn_varlen_func = dense_function, packed_function
    return module


MODULES = {
    "flash_attn": _module("flash_attn", v2_dense, v2_packed),
    "flash_attn_interface": _module("flash_attn_interface", v3_dense, v3_packed),
    "flash_attn.cute": _module("flash_attn.cute", v4_dense, v4_packed),
}
