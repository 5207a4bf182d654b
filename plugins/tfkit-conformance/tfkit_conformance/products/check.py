"""Checks a product by its laws: with a packed weight in float32, or in a lower precision."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from torch import Tensor

from tfkit import Diagnostic, InputError
from tfkit.inspection import Int8Weight
from tfkit.plugin import Float32Kernel, Int8Kernel
from tfkit.plugin.model_parts import load

from ..law_evaluation import chosen_laws, evaluated
from ..profile import profile_of
from ..report import ConformanceReport
from ..resolve import versions
from .bound import Bfloat16, Float32, Format, Int8
from .laws import LAWS, Make, Product

SEEDS = {"quick": 2, "standard": 10, "deep": 100}
"""Drawn cases of each shape by profile."""
FORMATS = ("int8", "bfloat16", "float32")


def check_product(
    make: Make | Int8Kernel | Float32Kernel,
    *,
    precision: str | None = None,
    levels: int | None = None,
    weight_levels: int = 127,
    profile: str = "quick",
    seed: int = 0,
    name: str = "",
    checks: Iterable[str] | None = None,
) -> ConformanceReport:
    """Checks a linear map that rounds weights and activations to int8 or bfloat16, or computes in float32 with packed weights.

    Args:
        make: called with a weight (out, in) and a bias (out,) or None, both float32; returns a function from rows (N, in) to
            (N, out), float32. Or the entry of an int8 kernel or a float32 kernel.
        precision: "int8", with a scale for each row and each output channel; "bfloat16"; or "float32". By default that of the
            kernel, or "int8".
        levels: for int8, the largest integer of an activation; by default 127, or that of the kernel.
        weight_levels: for int8, the largest integer of a weight.
        profile: how many drawn cases: "quick", "standard" or "deep".
        seed: of the cases.
        name: in reports; by default that of the function or of the kernel.
        checks: names of laws, if not all.

    Returns:
        The report: verdict, checks, and the first violation of each law that does not hold.

    Raises:
        InputError: there is no such law, profile or precision, or a number of levels is not from 1 to 127.
    """
    if isinstance(make, Int8Kernel):
        levels = make.levels if levels is None else levels
        name, make = name or make.name, product_of(make)
    elif isinstance(make, Float32Kernel):
        name, make, precision = name or make.name, product_of(make), precision or "float32"
    precision = precision or "int8"
    levels = 127 if levels is None else levels
    for argument, value in (("levels", levels), ("weight_levels", weight_levels)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 127:
            raise InputError(Diagnostic("TFK094", f"{argument} is {value!r}", "it is a whole number from 1 to 127"))
    if precision not in FORMATS:
        raise InputError(Diagnostic("TFK094", f"there is no precision {precision!r} here", f"precisions: {', '.join(FORMATS)}"))
    formats: dict[str, Format] = {"int8": Int8(levels, weight_levels), "bfloat16": Bfloat16(), "float32": Float32()}
    format = formats[precision]
    laws = chosen_laws(LAWS, checks)
    chosen, started = profile_of(profile).name, time.perf_counter()
    results, findings = [], []
    for law in laws:
        cases = (case for number in range(seed, seed + SEEDS[chosen]) for case in law.cases(make, format, number))
        result, law_findings = evaluated(law.name, law.rule, format.name, cases, law.evaluate)
        results.append(result)
        findings += law_findings
    return ConformanceReport(
        "product", name or getattr(make, "__qualname__", type(make).__name__), "", {}, "cpu", ("float32",), chosen, seed,
        versions("cpu"), tuple(results), tuple(findings), seconds=round(time.perf_counter() - started, 2),
    )  # fmt: skip


def product_of(kernel: Int8Kernel | Float32Kernel) -> Make:
    """The linear map that a kernel computes, by weight and bias."""

    def make(weight: Tensor, bias: Tensor | None) -> Product:
        if isinstance(kernel, Float32Kernel):
            return partial(load(kernel.multiply), packed=load(kernel.pack)(weight), bias=bias)
        return partial(Int8Weight(weight, kernel).product, bias=bias)

    return make
