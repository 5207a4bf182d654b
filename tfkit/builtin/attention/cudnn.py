"""Attention by cuDNN and nothing else: torch's scaled_dot_product_attention, allowed no other kernel for the one call.

    output = softmax(scale q k^T, masked) v        https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html

torch raises where cuDNN cannot serve a call; nothing falls back. A causal square call from position 0 needs no mask tensor, nor
does right padding of both sides; every other mask is given as bool. Not declared, though cuDNN has it: dropout, because its
probability must be a multiple of 1/16, and a bias, because torch 2.11 reads one in float32 as if it were of the query's dtype
(https://github.com/pytorch/pytorch/pull/191612). Nor compile: whether the kernel stays fixed in a compiled model was not tried
on a device.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ...plugin import AttentionInputs, AttentionOutput, BackendRefused, Diagnostic, NoOptions, require_capabilities
from . import sdpa
from .entries import CUDNN, SdpaOptions

ONLY_CUDNN = SdpaOptions(kernel="cudnn")
check = require_capabilities(CUDNN.name, CUDNN.capabilities)


def attend(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V). Raises BackendRefused for
    what is not declared, and where the tensors are not on a CUDA device."""
    check(inputs)
    if not inputs.query.is_cuda:
        raise BackendRefused(
            Diagnostic("TFK060", f"`cudnn` runs on CUDA, not on {inputs.query.device}", "choose another backend")
        )
    query, key, value = (_with_dense_rows(tensor) for tensor in (inputs.query, inputs.key, inputs.value))
    return sdpa.attend(replace(inputs, query=query, key=key, value=value), ONLY_CUDNN)


def _with_dense_rows(tensor: Tensor) -> Tensor:
    """torch gives cuDNN no tensor whose features do not lie side by side."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
