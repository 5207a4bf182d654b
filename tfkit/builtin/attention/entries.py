"""The entries of the built-in attention backends: capabilities and measured tables."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import Any, Literal

from ...attention.auto_table import AutoRow
from ...attention.capabilities import BIAS_KINDS, MASK_TERMS
from ...plugin import AttentionBackend, AttentionRequest, AutoTable, Capabilities, Device, NoOptions, Numerics, Options, Range
from .auto_cuda import sdpa_rows
from .published_cuda import ROWS

TERMS, BIASES = frozenset(MASK_TERMS), frozenset(BIAS_KINDS)
DEVICES = (Device(kind="cpu"), Device(kind="cuda"))
ON_CUDA = frozenset({"cuda"})
"""Kernels that give zeros where scores of -inf alone have no softmax: FlashAttention divides by a sum of 0 as if it were 1."""
DTYPES = frozenset({"float64", "float32", "bfloat16", "float16"})
version = cache(metadata.version)
"""The version of an installed package, read once: each class of calls of each site asks for it."""


class SdpaOptions(Options):
    """`kernel` fixes the kernel of torch; with `default`, torch chooses among the kernels that are correct for the call."""

    kernel: Literal["default", "math", "flash", "efficient", "cudnn"] = "default"


def _sdpa_unsupported(request: AttentionRequest, options: SdpaOptions) -> tuple[str, ...]:
    """The limits of each kernel, and of all kernels of torch on CUDA."""
    kernel, reasons = options.kernel, []
    if request.device == "cuda" and request.deterministic and request.gradients and kernel != "math":
        reasons.append("on CUDA only `kernel: math` has a deterministic backward")
    if kernel in ("efficient", "cudnn") and request.device == "cpu":
        reasons.append(f"`kernel: {kernel}` exists on CUDA only")
    if kernel == "flash":
        for wanted, reason in (
            (request.dropout and request.device == "cpu", "dropout on the CPU"),
            (request.bias_gradient, "the gradient of a bias"),
            (request.bias and request.device == "cuda", "a bias on CUDA"),
            (_differs(request), "a value dim other than head_dim"),
        ):
            if wanted:
                reasons.append(f"`kernel: flash` cannot do {reason}")
    if kernel in ("flash", "cudnn") and request.device == "cuda":
        if request.dtype in ("float32", "float64"):
            reasons.append(f"`kernel: {kernel}` on CUDA has no {request.dtype}")
        for term in sorted(request.mask_terms - {"causal", "query_lengths"}):
            reasons.append(f"`kernel: {kernel}` on CUDA is not used with mask term {term}")
    if kernel == "cudnn" and request.bias:
        reasons.append("`kernel: cudnn` is not used with a bias: its gradients were NaN")
    return tuple(reasons)


def _differs(request: AttentionRequest) -> bool:
    return request.value_dim is not None and request.head_dim is not None and request.value_dim != request.head_dim


class FlexOptions(Options):
    """`kernel` fixes one of the kernels that torch compiles for flex_attention (torch's `BACKEND`). torch raises an
    error for a call that this kernel cannot compute. With `default`, torch chooses."""

    kernel: Literal["default", "triton", "triton_decode", "flash"] = "default"


def _flex_unsupported(request: AttentionRequest, options: FlexOptions) -> tuple[str, ...]:
    reasons = []
    if options.kernel != "default" and request.device == "cpu":
        reasons.append(f"`kernel: {options.kernel}` exists on CUDA only")
    if options.kernel == "flash":
        reasons += _flash_attn_4()
    if request.device == "cpu" and request.gradients:
        reasons.append("torch's flex_attention has no backward on the CPU")
    if request.device == "cpu" and request.compiled:
        reasons.append("flex_attention compiled for the CPU is not reliable")
    if request.device == "cuda" and request.head_dim is not None and request.head_dim < 16:
        reasons.append(f"on CUDA head_dim {request.head_dim} is below 16")
    if request.device == "cuda" and request.dtype == "float64":
        reasons.append("on CUDA there is no float64")
    return tuple(reasons)


def _cudnn_unsupported(request: AttentionRequest, options: Any) -> tuple[str, ...]:
    """Calls that torch does not pass to cuDNN, and calls that cuDNN computes wrongly."""
    reasons, value_dim = [], request.value_dim
    masked = bool(request.mask_terms - {"query_lengths"})
    if value_dim is not None and _differs(request) and (value_dim > 128 or value_dim % 8):
        reasons.append(f"value dim {value_dim} is outside 8 to 128, multiples of 8")
    if request.gradients and masked and request.keys is not None and request.keys % 128 == 64:
        reasons.append(
            f"its backward with a mask can give NaN at key length {request.keys}, 64 above a multiple of 128 "
            "(https://github.com/pytorch/pytorch/issues/196678)"
        )
    if request.gradients and request.queries == 1:
        reasons.append("its backward can give NaN for one query (https://github.com/NVIDIA/cudnn-frontend/issues/1072)")
    if request.grouped and request.cuda_capability is not None and request.cuda_capability >= (10, 0):
        reasons.append("it was wrong for few key/value heads on sm_100 (https://github.com/pytorch/pytorch/issues/193893)")
    return tuple(reasons)


def _common_limits(request: AttentionRequest) -> list[str]:
    """What none of the three does. `varlen_attn` of torch 2.11 has no grouped queries, and splits keys by the longest row."""
    torch_version = version("torch")
    old = [int(part) for part in torch_version.split(".")[:2]] < [2, 12]
    reasons = [f"it needs torch 2.12, and this is {torch_version}"] if old else []
    if "key_visible" in request.mask_terms and "window" in request.mask_terms:
        reasons.append("a window over keys of which some are hidden is not declared")
    return reasons


def _varlen_unsupported(request: AttentionRequest, options: Any) -> tuple[str, ...]:
    return tuple(_common_limits(request))


def _fa3_unsupported(request: AttentionRequest, options: Any) -> tuple[str, ...]:
    reasons = _common_limits(request)
    if request.cuda_capability is not None and request.cuda_capability[0] != 9:
        reasons.append("its kernels are for sm_90 alone")
    if find_spec("flash_attn_interface") is None:
        reasons.append("flash_attn_interface is not installed (folder hopper of https://github.com/Dao-AILab/flash-attention)")
    return tuple(reasons)


def _fa4_unsupported(request: AttentionRequest, options: Any) -> tuple[str, ...]:
    reasons = _common_limits(request)
    if request.cuda_capability is not None and request.cuda_capability[0] not in (9, 10):
        reasons.append("its kernels are for sm_90 and sm_100")
    return (*reasons, *_flash_attn_4())


def _flash_attn_4() -> list[str]:
    """Why FlashAttention 4 cannot be used here; nothing if it is installed."""
    try:
        version("flash-attn-4")
    except metadata.PackageNotFoundError:
        return ["flash-attn-4 is not installed (pip install --pre flash-attn-4)"]
    return []


EAGER = AttentionBackend(
    name="eager",
    summary="The equation in plain torch: every feature, whole score matrix in memory.",
    reference="https://arxiv.org/abs/1706.03762",
    attend="tfkit.builtin.attention.eager:attend",
    prepare="tfkit.builtin.attention.eager:prepare",
    options=NoOptions,
    capabilities=Capabilities(
        devices=DEVICES,
        dtypes=DTYPES,
        head_dim=Range(),
        value_dim_differs=True,
        query_length=Range(),
        key_length=Range(),
        mask_terms=TERMS,
        tensor_offset=True,
        bias_kinds=BIASES,
        bias_gradient=BIASES,
        dropout=True,
        weights="differentiable",
        lse=True,
        grouped_queries=True,
        softcap=True,
        scores=frozenset({"*"}),
        backward=True,
        double_backward=True,
        deterministic_backward=True,
        compile=True,
        export=True,
        numerics=Numerics(probabilities="accumulation", tf32=True, grade="A"),
    ),
    auto=tuple(AutoRow(device=device, dtypes=DTYPES, relative_time=1.0) for device in ("cpu", "cuda")),
    threads=True,
)

SDPA = AttentionBackend(
    name="sdpa",
    summary="torch.nn.functional.scaled_dot_product_attention: torch's fused kernels.",
    reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
    attend="tfkit.builtin.attention.sdpa:attend",
    prepare="tfkit.builtin.attention.sdpa:prepare",
    options=SdpaOptions,
    unsupported=_sdpa_unsupported,
    capabilities=Capabilities(
        devices=DEVICES,
        dtypes=DTYPES,
        head_dim=Range(),
        value_dim_differs=True,
        query_length=Range(),
        key_length=Range(),
        mask_terms=TERMS,
        tensor_offset=True,
        bias_kinds=BIASES,
        bias_gradient=BIASES,
        dropout=True,
        grouped_queries=True,
        backward=True,
        deterministic_backward=True,
        compile=True,
        export=True,
        numerics=Numerics(gradients="storage", tf32=True, nan_as_zero=ON_CUDA),
    ),
    auto=AutoTable("tfkit.builtin.attention", ("auto_cpu.json", "auto_h100.json"), "sdpa", more=(*ROWS, *sdpa_rows())),
    threads=True,
)

FLEX = AttentionBackend(
    name="flex",
    summary="torch.nn.attention.flex_attention: masks and biases computed inside the kernel, hidden blocks skipped.",
    reference="https://arxiv.org/abs/2412.05496",
    attend="tfkit.builtin.attention.flex:attend",
    prepare="tfkit.builtin.attention.flex:prepare",
    options=FlexOptions,
    unsupported=_flex_unsupported,
    capabilities=Capabilities(
        devices=DEVICES,
        dtypes=DTYPES,
        head_dim=Range(),
        value_dim_differs=True,
        query_length=Range(),
        key_length=Range(),
        mask_terms=TERMS,
        tensor_offset=True,
        bias_kinds=BIASES,
        lse=True,
        grouped_queries=True,
        softcap=True,
        backward=True,
        compile=True,
        numerics=Numerics(tf32=True),
    ),
    # On a CPU torch compiles parts of the unfused form. Meanwhile `torch.compiler.is_compiling()` is True in all threads.
    threads=False,
)

CUDNN = AttentionBackend(
    name="cudnn",
    summary="cuDNN's fused attention through torch, and no other kernel.",
    reference="https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html",
    attend="tfkit.builtin.attention.cudnn:attend",
    prepare="tfkit.builtin.attention.sdpa:prepare",
    options=NoOptions,
    unsupported=_cudnn_unsupported,
    capabilities=Capabilities(
        devices=(Device(kind="cuda", minimum_capability=(8, 0)),),
        dtypes=frozenset({"bfloat16", "float16"}),
        head_dim=Range(minimum=8, maximum=128, multiple=8),
        value_dim_differs=True,
        query_length=Range(),
        key_length=Range(minimum=2),
        mask_terms=TERMS,
        tensor_offset=True,
        grouped_queries=True,
        backward=True,
        numerics=Numerics(nan_as_zero=ON_CUDA),
    ),
)

VARLEN = AttentionBackend(
    name="varlen",
    summary="torch.nn.attention.varlen: FlashAttention on batches packed by lengths, without padding.",
    reference="https://docs.pytorch.org/docs/stable/nn.attention.varlen.html",
    attend="tfkit.builtin.attention.varlen:attend",
    prepare="tfkit.builtin.attention.varlen:prepare",
    options=NoOptions,
    unsupported=_varlen_unsupported,
    capabilities=Capabilities(
        devices=(Device(kind="cuda", minimum_capability=(8, 0)),),
        dtypes=frozenset({"bfloat16", "float16"}),
        head_dim=Range(minimum=8, maximum=256, multiple=8),
        query_length=Range(),
        key_length=Range(),
        mask_terms=frozenset({"causal", "window", "key_lengths", "query_lengths", "key_visible"}),
        tensor_offset=True,
        grouped_queries=True,
        backward=True,
        numerics=Numerics(nan_as_zero=ON_CUDA),
    ),
)

VARLEN_FA3 = replace(
    VARLEN,
    name="varlen.fa3",
    summary="varlen with FlashAttention 3 active in torch, during its calls only.",
    reference="https://arxiv.org/abs/2407.08608",
    attend="tfkit.builtin.attention.varlen:attend_fa3",
    unsupported=_fa3_unsupported,
    capabilities=VARLEN.capabilities.model_copy(update={"devices": (Device(kind="cuda", minimum_capability=(9, 0)),)}),
    threads=False,
)

VARLEN_FA4 = replace(
    VARLEN_FA3,
    name="varlen.fa4",
    summary="varlen with FlashAttention 4 active in torch, during its calls only.",
    reference="https://arxiv.org/abs/2603.05451",
    attend="tfkit.builtin.attention.varlen:attend_fa4",
    unsupported=_fa4_unsupported,
)

ENTRIES = [EAGER, SDPA, FLEX, CUDNN, VARLEN, VARLEN_FA3, VARLEN_FA4]
