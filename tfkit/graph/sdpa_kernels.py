"""Which family of kernels torch's scaled_dot_product_attention takes on CUDA, as far as it can be said without a device.

torch tries the families in an order that depends on its version, and takes the first whose conditions a call meets. On a
device, `torch.backends.cuda.can_use_flash_attention` and its siblings decide; without one they only say that there is none. The
rules here are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp:

    torch 2.10 and up   cuDNN first on sm_90, sm_100 and sm_103 where cuDNN is newer than 9.15, unless
                        TORCH_CUDNN_SDPA_DEPRIORITIZED is set; then flash, efficient, math
    torch 2.6 to 2.9    flash, efficient, math, cuDNN
    cuDNN, flash        16 bits, from sm_80 up, equal head dims to 256; flash takes no mask
    efficient           multiples of 8 features in 16 bits, of 4 in float32; a mask of the query's dtype

The backend `sdpa` gives cuDNN no call with a mask, because its gradients can be NaN.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..attention.capabilities import AttentionRequest

SOURCE = "https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp"
NEWER_THAN = (9, 15)
CUDNN_FIRST_ON = ((9, 0), (10, 0), (10, 3))
PADDING = frozenset({"key_visible", "key_lengths"})
"""Terms of a mask that batches without padding do not have."""
NOT_DENSE = frozenset({"causal", "query_lengths"})
SIXTEEN = ("bfloat16", "float16")
PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")


def installed_cudnn() -> str | None:
    """The version of the cuDNN that torch loads, by the package that brings it."""
    for name in PACKAGES:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def order(capability: tuple[int, int] | None, torch: str, cudnn: str | None) -> tuple[tuple[str, ...], str]:
    """The order in which torch tries the families.

    Args:
        capability: The compute capability of the device, None if unknown.
        torch: The version of torch.
        cudnn: The version of cuDNN, None if unknown.

    Returns:
        The families, and what they depend on that is not known here, or "". No families for a torch without known rules.
    """
    numbers = _numbers(torch)
    usual = ("flash", "efficient", "math")
    if numbers < (2, 6):
        return (), f"the order of torch {torch} is not known here"
    if numbers < (2, 10) or os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED"):
        return (*usual, "cudnn"), ""
    first, later = ("cudnn", *usual), (*usual, "cudnn")
    if capability is None:
        return first, "cuDNN is first on sm_90, sm_100 and sm_103 alone"
    if capability not in CUDNN_FIRST_ON:
        return later, ""
    if cudnn is None:
        return first, "cuDNN is first where it is newer than 9.15"
    return (first if _numbers(cudnn, 3) > (*NEWER_THAN, 0) else later), ""


def families(request: AttentionRequest, tried: tuple[str, ...]) -> dict[str, str]:
    """The family of a call without a dense mask and of one with it, as `plain` and `masked`.

    Args:
        request: What a site asks of a backend.
        tried: The families in torch's order.

    Returns:
        The two names. `plain` alone where no mask of the site is dense, `masked` alone where each call has a dense mask or
        bias.
    """
    may, always = bool(request.mask_terms & PADDING), bool(request.bias or request.mask_terms - PADDING - NOT_DENSE)
    asked = {"plain": not always, "masked": may or always}
    return {
        name: next(family for family in tried if family in set(_able(request, name == "masked")))
        for name, wanted in asked.items() if wanted and tried
    }  # fmt: skip


def _able(request: AttentionRequest, masked: bool) -> Iterator[str]:
    D, V = request.head_dim or 64, request.value_dim or request.head_dim or 64
    recent = request.cuda_capability is None or request.cuda_capability >= (8, 0)
    if request.dtype in SIXTEEN and recent and D == V and D <= 256 and not masked:
        yield "flash"
        if D % 8 == 0:
            yield "cudnn"
    alike = not (request.bias == "linear" and request.dtype in SIXTEEN)  # ALiBi's slopes are float32
    multiple = 8 if request.dtype in SIXTEEN else 4
    wide_enough = request.dtype != "bfloat16" or recent
    if request.dtype in (*SIXTEEN, "float32") and D % multiple == V % multiple == 0 and alike and wide_enough:
        yield "efficient"
    yield "math"


def facts(capability: tuple[int, int] | None) -> dict[str, Any]:
    """What `tfkit plan` says of torch's kernels for a CUDA device of this capability."""
    torch, cudnn = version("torch").partition("+")[0], installed_cudnn()
    tried, depends = order(capability, torch, cudnn)
    return {"torch": torch, "cudnn": cudnn, "order": list(tried), "depends": depends, "source": SOURCE}


def _numbers(text: str, count: int = 2) -> tuple[int, ...]:
    parts = text.partition("+")[0].split(".")[:count]
    return tuple(int("".join(char for char in part if char.isdigit()) or 0) for part in parts)
