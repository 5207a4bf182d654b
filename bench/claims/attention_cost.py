"""Time and memory of a self-attention layer against N tokens: O(N^2 M + N M^2) operations, O(N^2 H + N M) values kept."""

from __future__ import annotations

import time

import torch
from claim import Claim, Measured, Summary, main
from token_order import SPEC

import tfkit
from tfkit import parse_spec

WIDTH, HEADS = 32, 4
LENGTHS = (128, 256, 512, 1024, 2048)


def measure(seed: int, tiny: bool) -> Measured:
    """Processor time of a forward and backward pass, and bytes kept for the backward pass, relative to the shortest length."""
    model = tfkit.build(parse_spec(SPEC.format(position="sinusoidal", layers=1)), seed=seed, backend="eager").train()
    seconds: dict[float, float] = {}
    kept: dict[float, float] = {}
    for length in LENGTHS[:2] if tiny else LENGTHS:
        ids, sizes = torch.randint(3, 100, (1, length)), {}

        def keep(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        times = []
        for _ in range(3 if tiny else 7):
            start = time.process_time()
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                sizes.clear()
                loss = model(tokens=ids)["encoder"].square().sum()
                kept[length] = sum(sizes.values())
            loss.backward()
            times.append(time.process_time() - start)
        seconds[length] = min(times)
    operations = {N: 2 * N * N * WIDTH + N * (4 + 4) * WIDTH**2 / 2 for N in seconds}
    values = {N: 2 * N * N * HEADS + 16 * N * WIDTH for N in seconds}
    return {
        "time, relative": {"measured": _relative(seconds), "N^2 M + N M^2": _relative(operations)},
        "bytes kept, relative": {"measured": _relative(kept), "N^2 H + N M": _relative(values)},
    }


def _relative(values: dict[float, float]) -> dict[float, float]:
    first = values[min(values)]
    return {x: value / first for x, value in values.items()}


def verdict(found: Summary) -> str:
    parts = []
    for quantity, series in found.items():
        measured, expected = series.values()
        before, last = sorted(measured)[-2:]
        growth, law = measured[last][0] / measured[before][0], expected[last][0] / expected[before][0]
        agrees = "agrees" if 0.75 < growth / law < 1.33 else "does not agree"
        name = quantity.partition(",")[0]
        parts.append(f"{name} {agrees}: it grows {growth:.2f} times in the last doubling of N (formula: {law:.2f})")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


CLAIM = Claim("The cost of a self-attention layer is quadratic in N", "N", measure, verdict)
if __name__ == "__main__":
    main(CLAIM)
