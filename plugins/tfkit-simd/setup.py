"""The C extensions. All else is in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

# The stable ABI: one build serves every Python from 3.10 up and every torch. Without -ffp-contract=off a compiler may fuse the
# product and the sum in the formula of int8, which changes its bits. -O3 copies sums between registers: products take 1.7 times
# as long as with -O2.
KERNELS = ["-O2", "-ffp-contract=off", "-fopenmp"]

setup(
    ext_modules=[
        Extension(
            "tfkit_simd._kernels",
            [f"source/{name}.c" for name in ("avx2", "avx512", "avx_vnni", "module")],
            depends=glob("source/*.h"),
            extra_compile_args=["-std=gnu11", "-g0", *KERNELS],
            extra_link_args=["-fopenmp"],
            py_limited_api=True,
        ),
        Extension(
            "tfkit_simd._processor", ["source/processor.c"], extra_compile_args=["-std=gnu11", "-g0"], py_limited_api=True
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
