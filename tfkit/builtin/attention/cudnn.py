"""Attention by cuDNN: torch's scaled_dot_product_attention, restricted to its cuDNN kernel.

    output = softmax(scale q k^T, masked) v        https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html

torch raises an error if cuDNN does not support a call; there is no fallback. A square causal call from position 0 needs no mask
tensor, nor does right padding of queries and keys. Every other mask is a bool tensor.

cuDNN has more features than the entry declares:

- dropout: its probability must be a multiple of 1/16;
- bias: torch 2.11 reads a float32 bias as if it had the query's dtype (https://github.com/pytorch/pytorch/pull/191612);
- compile: not tested on a device, so it is unknown whether a compiled model keeps the kernel.
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
    """softmax(scale q k^T, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V).

    Raises BackendRefused for features that the entry does not declare, and for tensors on another device than CUDA.
    """
    check(inputs)
    if not inputs.query.is_cuda:
        raise BackendRefused(
            Diagnostic("TFK060", f"`cudnn` runs on CUDA, not on {inputs.query.device}", "choose another backend")
        )
    query, key, value = (_with_dense_rows(tensor) for tensor in (inputs.query, inputs.key, inputs.value))
    return sdpa.attend(replace(inputs, query=query, key=key, value=value), ONLY_CUDNN)


def _with_dense_rows(tensor: Tensor) -> Tensor:
    """torch requires stride 1 in the last axis for the cuDNN kernel."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
