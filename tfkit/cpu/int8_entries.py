"""The entries of the built-in int8 kernels."""

from __future__ import annotations

from ..slots.processor_kernels import Int8Kernel

_HERE = "tfkit.cpu.int8_kernels"

ENTRIES = [
    Int8Kernel(
        name="onednn_amx",
        summary="oneDNN with AMX",
        reference="https://github.com/uxlfoundation/oneDNN",
        needs=("amx_int8", "amx_tile"),
        levels=127,
        pack=f"{_HERE}:onednn_pack",
        multiply=f"{_HERE}:onednn_multiply",
        relative_time=0.8,  # at 1 to 40 rows it takes longer than the kernel of tfkit-simd (bench/int8.py on an Intel Xeon)
    ),
    Int8Kernel(
        name="fbgemm_vnni",
        summary="FBGEMM with AVX-512 VNNI",
        reference="https://arxiv.org/abs/2101.05615",
        needs=("avx512_vnni",),
        levels=127,
        pack=f"{_HERE}:fbgemm_pack",
        multiply=f"{_HERE}:fbgemm_multiply_vnni",
        relative_time=1.0,
    ),
    Int8Kernel(
        name="fbgemm_avx2",
        summary="FBGEMM with AVX2",
        reference="https://arxiv.org/abs/2101.05615",
        needs=("avx2",),
        levels=63,
        pack=f"{_HERE}:fbgemm_pack",
        multiply=f"{_HERE}:fbgemm_multiply_avx2",
        relative_time=2.3,  # FBGEMM_ENABLE_INSTRUCTIONS=AVX2 python bench/int8.py
    ),
]
"""FBGEMM has no kernels for AMX. AVX2 adds two products in 16 bits, and 2 * 255 * 127 does not fit: with 63 levels the bytes
are at most 127, and no sum is cut off."""
