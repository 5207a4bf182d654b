"""`tfkit bench cpu`: the fastest product y = x W^T + b for each size of W and each number of rows, as a table for decoding.

Every kernel is compared with float64 first. The kernels take turns; a figure is the median over the rounds, of processor time
with one thread and of time with several. MKL's product stays unless another one is `MARGIN` times as fast, and so do plain
weights unless packing is. Between measured numbers of rows a and b the border is sqrt(a b). The form of the table is that of
`tfkit.cpu.product_table_file`; it bears no date, so that equal measurements are equal files.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tfkit import Model, load_catalogue
from tfkit.inspection import TokenLogits, Tokens, float32_kernel_here, product_kernels, product_machine

from .measure import Progress

FORM = 1
"""Version of the form of a table: the one that `tfkit.use_cpu_table` reads."""
MARGIN = 1.05
PACKED = {"packed", "installed"}
"""Kernels with a packed weight."""
SIZES = (
    (128, 128), (512, 128), (128, 512), (8000, 128), (256, 256), (1024, 256), (256, 1024), (16000, 256), (512, 512),
    (2048, 512), (512, 2048), (8000, 512), (32000, 512), (1024, 1024), (4096, 1024), (1024, 4096),
)  # fmt: skip
"""Weights (out, in) that are measured without a spec: projections, feed-forward layers and heads of usual models."""
ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
SAMPLE = 2e-4
"""Seconds that a sample of a round takes at least: small products are repeated."""
PART = 4096
"""Rows of a weight that are held in float64 at once."""


@dataclass(frozen=True)
class ProductSettings:
    """What to measure.

    Args:
        sizes: weights (out, in).
        rows: numbers of rows of x, in rising order.
        threads: torch's numbers of threads.
        rounds: samples of each kernel.
        seed: of the inputs.
    """

    sizes: Sequence[tuple[int, int]] = SIZES
    rows: Sequence[int] = ROWS
    threads: Sequence[int] = (1,)
    rounds: int = 11
    seed: int = 0


def sizes_of(model: Model) -> list[tuple[int, int]]:
    """The sizes (out, in) of a model's linear maps, each once, in rising order.

    Args:
        model: a built model, on `meta` too.
    """
    modules = list(model.modules())
    weights = [module.weight for module in modules if isinstance(module, torch.nn.Linear)]
    if any(isinstance(module, TokenLogits) and module.logits is None for module in modules):
        weights += [module.table() for module in modules if isinstance(module, Tokens) and module.embedding is not None]
    return sorted({(int(weight.shape[0]), int(weight.shape[1])) for weight in weights})


@torch.no_grad()
def measure_products(settings: ProductSettings, command: str, progress: Progress = lambda words: None) -> dict[str, Any]:
    """Measure the table.

    Args:
        settings: what to measure.
        command: the command, for the table.
        progress: is called with what is measured now.

    Returns:
        The table, with `measured` (microseconds of each kernel), `wrong` (kernels that differ from float64 by more than their
        bound) and `interrupted`.
    """
    before = torch.get_num_threads()
    table: dict[str, Any] = {
        "tfkit_products": FORM, **product_machine(), "command": command,
        "settings": {"rounds": settings.rounds, "margin": MARGIN},
        "rows": [], "measured": [], "wrong": [], "interrupted": False,
    }  # fmt: skip
    try:
        for threads in settings.threads:
            torch.set_num_threads(threads)
            for number, size in enumerate(settings.sizes, 1):
                outputs, inputs = size
                progress(f"threads {threads}, weight {number} of {len(settings.sizes)}: {outputs} x {inputs}")
                measured, wrong = _measure(size, threads, settings)
                table["measured"] += measured
                table["wrong"] += wrong
                table["rows"] += rows_of(measured)
    except KeyboardInterrupt:
        table["interrupted"] = True
    finally:
        torch.set_num_threads(before)
    return table


def _measure(size: tuple[int, int], threads: int, settings: ProductSettings) -> tuple[list[dict[str, Any]], list[str]]:
    outputs, inputs = size
    generator = torch.Generator().manual_seed(settings.seed)
    weight, bias = torch.randn(size, generator=generator), torch.randn(outputs, generator=generator)
    kernels = product_kernels(weight, bias, float32_kernel_here(load_catalogue().entries("float32_kernel")))
    clock = time.process_time if threads == 1 else time.perf_counter
    inputs_of = {count: torch.randn(count, inputs, generator=generator) for count in settings.rows}
    wrong: dict[str, list[int]] = {}
    for count, x in inputs_of.items():
        exact, bound = exact_product(x, weight, bias)
        for name, kernel in kernels.items():
            if not is_right(kernel(x), exact, bound):
                wrong.setdefault(name, []).append(count)
    right = {name: kernel for name, kernel in kernels.items() if name not in wrong}  # wrong once is never chosen
    facts = {"threads": threads, "outputs": outputs, "inputs": inputs}
    measured: list[dict[str, Any]] = []
    for count, x in inputs_of.items():
        times = medians(right, x, settings.rounds, clock)
        rounded = {name: round(1e6 * taken, 3) for name, taken in times.items()}
        measured.append({**facts, "rows": count, "microseconds": rounded})
    weight_is = f"rows with a weight of {outputs} x {inputs}"
    return measured, [f"{name}: {', '.join(map(str, counts))} {weight_is}" for name, counts in wrong.items()]


def exact_product(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """x W^T + b in float64, and the bound of the error of float32 sums in any order.

    Args:
        x: (N, in).
        weight: (out, in). A part of its rows at a time is held in float64.
        bias: (out,).

    Returns:
        The product (N, out), and (in + 2) 2^-24 (|x| |W|^T + |b|) (N, out).
    """
    parts = torch.split(weight, PART)
    exact = torch.cat([x.double() @ part.double().t() for part in parts], 1) + bias.double()
    magnitude = torch.cat([x.abs().double() @ part.abs().double().t() for part in parts], 1) + bias.abs().double()
    return exact, (weight.shape[1] + 2) * 2.0**-24 * magnitude


def is_right(y: Tensor, exact: Tensor, bound: Tensor) -> bool:
    """Whether a product is right.

    Args:
        y: (N, out), the result of a kernel.
        exact: (N, out), of `exact_product`.
        bound: (N, out), of `exact_product`.

    Returns:
        True if the shape is right and |y - exact| <= bound in every element.
    """
    return y.shape == exact.shape and bool(((y - exact).abs() <= bound).all())


def medians(
    kernels: dict[Any, Callable[[Tensor], Tensor]], x: Tensor, rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Median seconds of one call of each kernel with x; the kernels take turns.

    Args:
        x: (N, in).
        rounds: samples of each kernel.
        clock: returns seconds.
    """
    repeats: dict[str, int] = {}
    for name, kernel in kernels.items():
        kernel(x)
        start = clock()
        kernel(x)
        repeats[name] = max(1, math.ceil(SAMPLE / max(clock() - start, 1e-6)))
    samples: dict[str, list[float]] = {name: [] for name in kernels}
    for _ in range(rounds):
        for name, kernel in kernels.items():
            start = clock()
            for _ in range(repeats[name]):
                kernel(x)
            samples[name].append((clock() - start) / repeats[name])
    # A clock that did not move says: less than a nanosecond.
    return {name: max(statistics.median(taken), 1e-9) for name, taken in samples.items()}


def rows_of(measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the table for one weight; neighbours with the same kernels are one row.

    Args:
        measured: the figures of the weight, by rising numbers of rows.

    Returns:
        Rows that cover every number of rows up to twice the largest measured one.
    """
    runs: list[tuple[tuple[str, str], list[int]]] = []
    for figures in measured:
        if figures["microseconds"].keys() <= PACKED:
            continue  # every product with a plain weight was wrong
        winners = best(figures["microseconds"])
        if runs and runs[-1][0] == winners:
            runs[-1][1].append(figures["rows"])
        else:
            runs.append((winners, [figures["rows"]]))
    firsts = [1, *(math.isqrt(one[-1] * two[0]) + 1 for (_, one), (_, two) in pairwise(runs))]
    lasts = [*(first - 1 for first in firsts[1:]), *([2 * runs[-1][1][-1]] if runs else [])]
    shared = {key: measured[0][key] for key in ("threads", "outputs", "inputs")} if measured else {}
    return [
        {**shared, "rows": [first, last], "fastest": fastest, "unpacked": unpacked}
        for ((fastest, unpacked), _), first, last in zip(runs, firsts, lasts, strict=False)
    ]


def best(times: dict[str, float]) -> tuple[str, str]:
    """The fastest kernel, and the fastest with a plain weight; a simpler one unless another is `MARGIN` times as fast.

    Args:
        times: of one call, by kernel; at least one with a plain weight.

    Returns:
        Their names.
    """
    plain = {name: taken for name, taken in times.items() if name not in PACKED}
    unpacked = min(plain, key=lambda name: plain[name])
    if plain.get("mkl", math.inf) <= MARGIN * plain[unpacked]:
        unpacked = "mkl"
    fastest = min(times, key=lambda name: times[name])
    return (fastest if fastest in PACKED and times[fastest] * MARGIN < plain[unpacked] else unpacked), unpacked
