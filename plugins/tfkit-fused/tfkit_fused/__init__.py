"""The declaration: what tfkit reads to list the backend, check a spec against it, and refuse what it cannot do."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Literal

from tfkit.plugin import (
    AttentionBackend,
    AttentionRequest,
    AutoTable,
    Capabilities,
    Device,
    Numerics,
    Options,
    Range,
    Size,
    hookimpl,
)

ALL_BIASES = frozenset({"dense", "linear", "distance"})
INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")
"""Triton's interpreter runs kernels on the CPU, slowly, to show that they are right. Triton asks for it when it is imported."""

NARROW = 32
"""Value dims whose kernels ptxas 12.8.61 to 12.9.41 makes wrong where queries and keys are wider: it loses the definition of a
register (docs/upstream/ptxas-reads-before-writes.md)."""


class FusedOptions(Options):
    """Sizes of the tiles that a program works on, powers of two from 16; None lets the backend choose.

    `tuned: saved` takes what was measured before on such a device where there is anything, `measure` also measures what is
    missing at the first call of each class, which takes seconds, and `off` does neither. Sizes that are written come first.
    """

    tile_queries: Size | None = None
    tile_keys: Size | None = None
    tuned: Literal["off", "saved", "measure"] = "saved"


def unsupported(request: AttentionRequest, options: FusedOptions) -> tuple[str, ...]:
    """What this machine, the interpreter or a choice of tiles cannot do."""
    reasons = []
    if find_spec("triton") is None:
        reasons.append("the package triton is not installed (pip install triton; it is made for Linux)")
    if request.device == "cpu" and not INTERPRETED:
        reasons.append("its kernels need CUDA from sm_80 up (TRITON_INTERPRET=1 runs them on a CPU, slowly, to try them)")
    if request.device == "cpu" and request.dtype == "bfloat16":
        reasons.append("Triton's interpreter computes wrongly in bfloat16")
    for name, size in (("tile_queries", options.tile_queries), ("tile_keys", options.tile_keys)):
        if size is not None and (size < 16 or size & (size - 1)):
            reasons.append(f"{name} {size} is no power of two from 16 up")
    if options.tuned == "measure" and (options.tile_queries or options.tile_keys):
        reasons.append("sizes of tiles that are written leave `tuned: measure` nothing to measure")
    if options.tuned == "measure" and request.device == "cpu":
        reasons.append("`tuned: measure` needs CUDA: times of an interpreter say nothing")
    if request.value_dim is not None and request.value_dim > 256:
        reasons.append(f"value dim {request.value_dim} is above 256")
    is_narrow = request.value_dim is not None and request.value_dim <= min(NARROW, (request.head_dim or 0) - 1)
    if is_narrow and request.device != "cpu" and request.dtype != "float32" and (request.cuda_capability or (9, 0)) >= (9, 0):
        reasons.append(f"in 16 bits, ptxas 12.8 makes wrong code for value dims to {NARROW} with wider queries")
    return tuple(reasons)


CAPABILITIES = Capabilities(
    devices=(Device(kind="cuda", minimum_capability=(8, 0)), *((Device(kind="cpu"),) if INTERPRETED else ())),
    dtypes=frozenset({"float32", "bfloat16", "float16"}),
    head_dim=Range(maximum=256),
    value_dim_differs=True,
    query_length=Range(maximum=1 << 20),
    key_length=Range(maximum=1 << 20),
    mask_terms=frozenset({"causal", "window", "key_lengths", "query_lengths", "key_visible", "segments", "visible"}),
    tensor_offset=True,
    bias_kinds=ALL_BIASES,
    bias_gradient=ALL_BIASES,
    dropout=True,
    lse=True,
    grouped_queries=True,
    softcap=True,
    backward=True,
    deterministic_backward=True,
    batch_invariant=True,
    compile=True,
    export=True,
    numerics=Numerics(nan_as_zero=frozenset({"cuda", "cpu"})),  # scores of -inf alone count as hidden
)

FUSED = AttentionBackend(
    name="fused",
    summary="One fused kernel family in Triton: padding skipped, position biases and their gradients inside the kernel.",
    reference="https://arxiv.org/abs/2307.08691",
    attend="tfkit_fused.attend:attend",
    options=FusedOptions,
    unsupported=unsupported,
    capabilities=CAPABILITIES,
    auto=AutoTable("tfkit.builtin.attention", ("auto_h100.json",), "fused"),
)
ATOMIC = AttentionBackend(
    name="fused.atomic",
    summary="`fused` with a backward in one kernel, five products of tiles instead of seven: not deterministic.",
    reference="https://arxiv.org/abs/2307.08691",
    attend="tfkit_fused.attend:attend_atomic",
    options=FusedOptions,
    unsupported=unsupported,
    capabilities=CAPABILITIES.model_copy(update={"deterministic_backward": False, "batch_invariant": False}),
)


@hookimpl
def tfkit_attention_backends() -> list[AttentionBackend]:
    return [FUSED, ATOMIC]
