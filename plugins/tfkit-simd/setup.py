"""The C extensions. All else is in pyproject.toml. Other processors than x86-64 get no kernels: tfkit takes those of torch."""

import platform
import runpy
from glob import glob

from setuptools import Extension, setup

# The stable ABI: one build serves every Python from 3.10 up and every torch. Without -ffp-contract=off a compiler may fuse the
# product and the sum in the formula of int8, which changes its bits. -O3 copies sums between registers: products take 1.7 times
# as long as with -O2.
KERNELS = ["-O2", "-ffp-contract=off", "-fopenmp"]

digest = runpy.run_path("tfkit_simd/sources.py")["digest"]("source")
X86 = platform.machine() in ("x86_64", "AMD64")
kernels = Extension(
    "tfkit_simd._kernels",
    [f"source/{name}.c" for name in ("avx2", "avx512", "avx_vnni", "module")],
    depends=glob("source/*.h"),
    extra_compile_args=["-std=gnu11", "-g0", *KERNELS],
    extra_link_args=["-fopenmp"],
    py_limited_api=True,
)
processor = Extension(
    "tfkit_simd._processor",
    ["source/processor.c"],
    define_macros=[("SOURCES", f'"{digest}"'), *([("X86", "1")] if X86 else [])],
    depends=glob("source/*"),
    extra_compile_args=["-std=gnu11", "-g0"],
    py_limited_api=True,
)
setup(ext_modules=[kernels, processor] if X86 else [processor], options={"bdist_wheel": {"py_limited_api": "cp310"}})
