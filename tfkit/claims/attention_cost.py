"""Time and memory of a Transformer layer against N tokens and D features: O(N^2 D + N D^2) operations, and values kept."""

from __future__ import annotations

import resource
from statistics import median

from .claim import Measured, Series, Summary, model_of
from .token_order import SPEC

HEADS = 4
LENGTHS, WIDTH = (256, 512, 1024, 2048), 32
WIDTHS, LENGTH = (128, 256, 512, 1024), 128
PAGES_KEPT, RETURNED = "pages kept", "pages returned"
TIME, MEMORY, FAULTS, SYSTEM = "time, relative", "bytes kept, relative", "page faults", "share of time in the kernel, per cent"


def step(length: int, width: int, seed: int, repeats: int) -> dict[str, float]:
    """Median over forward and backward passes of a layer: seconds in all and in the kernel, page faults, bytes kept."""
    import torch

    changes = ("defaults.position=sinusoidal", f"defaults.d_model={width}", f"defaults.ffn.d_ff={2 * width}")
    model = model_of(SPEC, seed, *changes, backend="eager").train()
    ids, sizes = torch.randint(3, 100, (1, length), device="cpu"), {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens=ids)["encoder"].square().sum().backward()
    rows = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_SELF)
        model(tokens=ids)["encoder"].square().sum().backward()
        after = resource.getrusage(resource.RUSAGE_SELF)
        system = after.ru_stime - before.ru_stime
        rows.append((after.ru_utime - before.ru_utime + system, system, after.ru_minflt - before.ru_minflt))
    seconds, system, faults = (median(column) for column in zip(*rows, strict=True))
    return {"seconds": seconds, "system": system, "faults": faults, "bytes": sum(sizes.values())}


def measure(seed: int, tiny: bool) -> Series:
    """Processor time and memory relative to the smallest size, beside the formulas; for N also with freed memory kept."""
    from ..cpu.malloc import keep_pages, return_pages

    repeats = 2 if tiny else 7
    lengths, widths = (LENGTHS[:2], WIDTHS[:2]) if tiny else (LENGTHS, WIDTHS)
    return_pages()
    returned = {N: step(N, WIDTH, seed, repeats) for N in lengths}
    by_width = {D: step(LENGTH, D, seed, repeats) for D in widths}
    kept = {N: step(N, WIDTH, seed, repeats) for N in lengths} if keep_pages() else returned
    return_pages()
    return {
        f"{TIME}, against N": {
            RETURNED: _relative({N: row["seconds"] for N, row in returned.items()}),
            PAGES_KEPT: _relative({N: row["seconds"] for N, row in kept.items()}),
            "formula": _relative({N: operations(N, WIDTH) for N in lengths}),
        },
        f"{MEMORY}, against N": {
            "measured": _relative({N: row["bytes"] for N, row in returned.items()}),
            "formula": _relative({N: values(N, WIDTH) for N in lengths}),
        },
        f"{TIME}, against D": {
            "measured": _relative({D: row["seconds"] for D, row in by_width.items()}),
            "formula": _relative({D: operations(LENGTH, D) for D in widths}),
        },
        f"{MEMORY}, against D": {
            "measured": _relative({D: row["bytes"] for D, row in by_width.items()}),
            "formula": _relative({D: values(LENGTH, D) for D in widths}),
        },
        FAULTS: {
            name: {N: row["faults"] for N, row in rows.items()} for name, rows in ((RETURNED, returned), (PAGES_KEPT, kept))
        },
        SYSTEM: {
            name: {N: 100 * row["system"] / row["seconds"] for N, row in rows.items()}
            for name, rows in ((RETURNED, returned), (PAGES_KEPT, kept))
        },
    }


def operations(length: int, width: int) -> float:
    """Multiplications: scores and mixing, four projections, and a feed-forward layer of 2 D."""
    return 2 * length**2 * width + (4 + 4) * length * width**2


def values(length: int, width: int) -> float:
    """Values kept: scores before and after softmax of each head, about sixteen vectors for each token, and the weights."""
    return 2 * length**2 * HEADS + 16 * length * width + 8 * width**2


def _relative(points: dict[int, float]) -> dict[float, float]:
    first = points[min(points)]
    return {x: value / first for x, value in points.items()}


def _growth(points: dict[float, tuple[float, float, float, float]]) -> float:
    before, last = sorted(points)[-2:]
    return points[last][0] / points[before][0]


def verdict(measured: Summary) -> str:
    parts = []
    for quantity, series in measured.items():
        if "formula" not in series:
            continue
        law, name = _growth(series["formula"]), quantity.partition(",")[0]
        for label, points in series.items():
            if label != "formula":
                agrees = "agrees" if 0.75 < _growth(points) / law < 1.33 else "does not agree"
                note = "" if label == "measured" else f" with {label}"
                parts.append(f"{name}{note} {agrees}: {_growth(points):.2f} times in the last doubling of {quantity[-1]}"
                             f" (formula: {law:.2f})")  # fmt: skip
    last = max(measured[FAULTS][RETURNED])
    faults = {name: points[last][0] for name, points in measured[FAULTS].items()}
    text = "; ".join(parts)
    return (
        f"{text[0].upper()}{text[1:]}. At N = {last:g} each pass takes {faults[RETURNED]:,.0f} page faults with {RETURNED},"
        f" {measured[SYSTEM][RETURNED][last][0]:.0f} % of its time is in the kernel; with {PAGES_KEPT} it takes"
        f" {faults[PAGES_KEPT]:,.0f}."
    )


ATTENTION_COST = Measured(
    "The cost of a self-attention layer is quadratic in N and, for short text, in D",
    "Time and memory of a Transformer layer against N tokens and D features: O(N^2 D + N D^2) operations, and values kept.",
    "N or D",
    measure,
    verdict,
    40,
)
