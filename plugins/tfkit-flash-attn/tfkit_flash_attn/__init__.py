"""The declarations: what FlashAttention 2, 3 and 4 can do, each as far as its own source says, and whether they are here."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from tfkit.plugin import AttentionBackend, AttentionRequest, Capabilities, Device, NoOptions, Numerics, Range, hookimpl

TRAINS = frozenset({*range(8, 65, 8), 96, 128, 192, 256})
"""Head dims at which FlashAttention 4 trains here: its gradients were wrong between them
(https://github.com/Dao-AILab/flash-attention/pull/2896)."""


@cache
def missing(package: str) -> str:
    """Why a version cannot be used here; nothing where it is installed. Imports nothing."""
    if package == "flash_attn_interface":
        there = find_spec(package) is not None
        how = "build it in the folder hopper of https://github.com/Dao-AILab/flash-attention"
    else:
        there, how = _installed(package), f"pip install {'--pre ' if package == 'flash-attn-4' else ''}{package}"
    return "" if there else f"the package {package} is not installed ({how})"


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _positions(request: AttentionRequest) -> list[str]:
    """What no version can do together."""
    reasons = []
    if request.bias is not None and "causal" not in request.mask_terms:
        reasons.append("ALiBi without causality would follow another position")
    if request.bias is not None and "window" in request.mask_terms:
        reasons.append("ALiBi with a window is not declared")
    if request.bias is not None and request.lse:
        reasons.append("the log-sum-exp beside ALiBi would follow another position")
    if "key_visible" in request.mask_terms and "window" in request.mask_terms:
        reasons.append("a window over keys of which some are hidden is not declared")
    if "key_visible" in request.mask_terms and request.bias is not None:
        reasons.append("ALiBi over keys of which some are hidden would follow another position")
    if request.softcap and request.dropout:
        reasons.append("softcap and dropout exclude each other")
    return reasons


def unsupported_v2(request: AttentionRequest, options: NoOptions) -> tuple[str, ...]:
    """Limits of FlashAttention 2."""
    reasons, capability = [missing("flash-attn"), *_positions(request)], request.cuda_capability
    if request.gradients and (request.head_dim or 0) > 192 and capability is not None and (8, 6) <= capability <= (8, 9):
        reasons.append("on sm_86 to sm_89 it does not train above head_dim 192")
    return tuple(reason for reason in reasons if reason)


def unsupported_v3(request: AttentionRequest, options: NoOptions) -> tuple[str, ...]:
    """Limits of FlashAttention 3."""
    reasons = [missing("flash_attn_interface"), *_positions(request)]
    if request.cuda_capability is not None and request.cuda_capability >= (10, 0):
        reasons.append("its kernels are for sm_90 alone")
    return tuple(reason for reason in reasons if reason)


def unsupported_v4(request: AttentionRequest, options: NoOptions) -> tuple[str, ...]:
    """Limits of FlashAttention 4."""
    reasons = [missing("flash-attn-4"), *_positions(request)]
    if request.gradients and request.softcap:
        reasons.append("its backward with softcap is wrong or hangs (https://github.com/Dao-AILab/flash-attention/pull/2544)")
    if request.gradients and request.head_dim is not None and request.head_dim not in TRAINS:
        reasons.append(
            f"its gradients at head_dim {request.head_dim} are in doubt (https://github.com/Dao-AILab/flash-attention/pull/2896)"
        )
    return tuple(reason for reason in reasons if reason)


COMMON = Capabilities(
    devices=(Device(kind="cuda", minimum_capability=(9, 0)),),
    dtypes=frozenset({"bfloat16", "float16"}),
    head_dim=Range(minimum=8, maximum=256, multiple=8),
    query_length=Range(),
    key_length=Range(),
    mask_terms=frozenset({"causal", "window", "key_lengths", "query_lengths", "key_visible"}),
    tensor_offset=True,
    lse=True,
    grouped_queries=True,
    softcap=True,
    backward=True,
    numerics=Numerics(nan_as_zero=frozenset({"cuda"})),  # a sum of 0 counts as 1, so scores of -inf alone give 0
)

V2 = AttentionBackend(
    name="flash_attn.v2",
    summary="FlashAttention 2, padded batches packed.",
    reference="https://arxiv.org/abs/2307.08691",
    attend="tfkit_flash_attn.attend:attend_v2",
    prepare="tfkit_flash_attn.attend:prepare",
    unsupported=unsupported_v2,
    capabilities=COMMON.model_copy(
        update={
            "devices": (Device(kind="cuda", minimum_capability=(8, 0)),), "head_dim": Range(maximum=256),
            "bias_kinds": frozenset({"linear"}), "dropout": True, "deterministic_backward": True,
        }
    ),
)  # fmt: skip

V3 = AttentionBackend(
    name="flash_attn.v3",
    summary="FlashAttention 3 for Hopper, padded batches packed.",
    reference="https://arxiv.org/abs/2407.08608",
    attend="tfkit_flash_attn.attend:attend_v3",
    prepare="tfkit_flash_attn.attend:prepare",
    unsupported=unsupported_v3,
    capabilities=COMMON,
)

V4 = AttentionBackend(
    name="flash_attn.v4",
    summary="FlashAttention 4, padded batches packed.",
    reference="https://arxiv.org/abs/2603.05451",
    attend="tfkit_flash_attn.attend:attend_v4",
    prepare="tfkit_flash_attn.attend:prepare",
    unsupported=unsupported_v4,
    capabilities=COMMON,
)

ENTRIES = [V2, V3, V4]


@hookimpl
def tfkit_attention_backends() -> list[AttentionBackend]:
    return ENTRIES
