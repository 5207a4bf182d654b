"""Attention and products for decoding on x86 CPUs: C kernels with AVX-512 or AVX2, chosen when they are called.

The declaration: what tfkit reads to list the kernels, check a spec against them, and refuse what they cannot do.
"""

from __future__ import annotations

from typing import Literal

from tfkit.plugin import (
    AttentionBackend,
    AttentionRequest,
    AutoTable,
    BeamTopK,
    Capabilities,
    Device,
    Float32Kernel,
    Int8Kernel,
    Numerics,
    Options,
    Range,
    StepRecorder,
    hookimpl,
)

from ._processor import SOURCES, instructions
from .sources import check

check(SOURCES)
AVX2, AVX_VNNI, AVX512_VNNI = instructions()
"""Whether this processor has these instructions."""
MAX_HEAD_DIM = 256


class SimdOptions(Options):
    """`instructions` is the widest set of instructions to use; `best` takes what the processor has."""

    instructions: Literal["best", "avx2", "avx512"] = "best"


def unsupported(request: AttentionRequest, options: SimdOptions) -> tuple[str, ...]:
    """What this processor cannot do."""
    if not AVX2:
        return ("this processor has no AVX2",)
    if options.instructions == "avx512" and not AVX512_VNNI:
        return ("this processor has no AVX-512 with VNNI",)
    return ()


SIMD = AttentionBackend(
    name="simd",
    summary="Attention without gradients on x86 CPUs, in C with AVX-512 or AVX2: short sequences and decoding.",
    reference="https://arxiv.org/abs/1805.02867",
    attend="tfkit_simd.attention:attend",
    prepare="tfkit_simd.attention:prepare",
    options=SimdOptions,
    unsupported=unsupported,
    auto=AutoTable("tfkit_simd", ("auto_cpu.json",), "simd"),
    threads=True,
    capabilities=Capabilities(
        devices=(Device(kind="cpu"),),
        dtypes=frozenset({"float32"}),
        head_dim=Range(minimum=16, maximum=MAX_HEAD_DIM, multiple=16),
        query_length=Range(),
        key_length=Range(),
        mask_terms=frozenset({"causal", "window", "key_lengths", "query_lengths", "key_visible", "segments", "visible"}),
        tensor_offset=True,
        bias_kinds=frozenset({"dense", "linear", "distance"}),
        lse=True,
        grouped_queries=True,
        batch_invariant=True,
        numerics=Numerics(probabilities="accumulation", nan_as_zero=frozenset({"cpu"}), grade="B"),
    ),
)


def _int8_kernel(instructions: str, words: str, needs: tuple[str, ...], levels: int, relative_time: float) -> Int8Kernel:
    """The entry of the kernel for a set of instructions. Times: bench/int8.py on an AMD EPYC with all of them."""
    return Int8Kernel(
        name=f"simd.{instructions}",
        summary=f"tfkit-simd with {words}",
        needs=needs,
        levels=levels,
        pack=f"tfkit_simd.int8:pack_{levels}",
        multiply=f"tfkit_simd.int8:multiply_{instructions}",
        relative_time=relative_time,
        min_elements=2**14,  # in recorded steps (bench/translate_cells.py)
    )


AVX512 = ("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq")
INT8_KERNELS = [
    _int8_kernel("avx512_vnni", "AVX-512 VNNI", (*AVX512, "avx512_vnni"), levels=127, relative_time=0.6),
    _int8_kernel("avx_vnni", "AVX-VNNI", ("avx2", "fma3", "avx_vnni"), levels=127, relative_time=1.2),
    _int8_kernel("avx2", "AVX2", ("avx2", "fma3"), levels=63, relative_time=2.0),
]


def _float32_kernel(instructions: str, words: str, needs: tuple[str, ...], relative_time: float) -> Float32Kernel:
    """The entry of the kernel for a set of instructions. Times: bench/packed.py on an AMD EPYC with both."""
    return Float32Kernel(
        name=f"simd.{instructions}",
        summary=f"tfkit-simd with {words}",
        needs=needs,
        pack=f"tfkit_simd.float32:pack_{instructions}",
        multiply=f"tfkit_simd.float32:multiply_{instructions}",
        fingerprints=f"tfkit_simd.float32:fingerprints_{instructions}",
        relative_time=relative_time,
    )


FLOAT32_KERNELS = [
    _float32_kernel("avx512", "AVX-512", (*AVX512, "avx512_vnni"), relative_time=0.92),
    _float32_kernel("avx2", "AVX2", ("avx2", "fma3"), relative_time=1.6),
]


def _beam_top_k(instructions: str, words: str, needs: tuple[str, ...], relative_time: float) -> BeamTopK:
    """The entry of the kernel for a set of instructions. Times: bench/beam_top_k.py on an AMD EPYC with both."""
    return BeamTopK(
        name=f"simd.{instructions}",
        summary=f"log-softmax and top-k in one kernel, and the most probable token, with {words}",
        needs=needs,
        select=f"tfkit_simd.beams:select_{instructions}",
        greedy=f"tfkit_simd.beams:greedy_{instructions}",
        relative_time=relative_time,
    )


BEAM_TOP_K = [
    _beam_top_k("avx512", "AVX-512", (*AVX512, "avx512_vnni"), relative_time=0.37),
    _beam_top_k("avx2", "AVX2", ("avx2", "fma3"), relative_time=0.57),
]


def _step_recorder(instructions: str, words: str, needs: tuple[str, ...], relative_time: float) -> StepRecorder:
    """The entry of the recorder for a set of instructions. Times: bench/recorded_steps.py on an AMD EPYC with both."""
    return StepRecorder(
        name=f"simd.{instructions}",
        summary=f"whole decoding steps of small models in one call, with {words}",
        needs=needs,
        record=f"tfkit_simd.steps:record_{instructions}",
        greedy=f"tfkit_simd.steps:greedy_{instructions}",
        beams=f"tfkit_simd.steps:beams_{instructions}",
        relative_time=relative_time,
    )


STEP_RECORDERS = [
    _step_recorder("avx512", "AVX-512", (*AVX512, "avx512_vnni"), relative_time=0.2),
    _step_recorder("avx2", "AVX2", ("avx2", "fma3"), relative_time=0.25),
]


@hookimpl
def tfkit_step_recorders() -> list[StepRecorder]:
    return STEP_RECORDERS


@hookimpl
def tfkit_beam_top_k() -> list[BeamTopK]:
    return BEAM_TOP_K


@hookimpl
def tfkit_attention_backends() -> list[AttentionBackend]:
    return [SIMD]


@hookimpl
def tfkit_float32_kernels() -> list[Float32Kernel]:
    return FLOAT32_KERNELS


@hookimpl
def tfkit_int8_kernels() -> list[Int8Kernel]:
    return INT8_KERNELS
