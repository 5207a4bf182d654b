"""Times of `sdpa` on CUDA, relative to `eager`, where nobody has published or measured them: estimated, and marked so.

The time of a pair of a query and a key is that of its products, and of the bytes that it moves. The launch of a kernel is left
out, so that the estimates are for long calls. Nothing is carried from one compute capability to another: a capability without
an entry gets no figure, and `sdpa`, which chooses among torch's fused kernels, comes before plain torch.

    eager   4D / plain + bytes / bandwidth             backward  8D / plain + bytes / bandwidth
    sdpa    4D / rate                                  backward  10D / rate            + 2 bytes / bandwidth for a dense mask
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ...attention.auto_table import AutoRow

D = 64
"""The head dim of the estimates."""
SHORT, SINGLE = frozenset({"bfloat16", "float16"}), frozenset({"float32"})
PUBLISHED_FROM = 512
"""The least length with a published figure, for an H100 and 16 bits, without dropout, bias and masks other than causality."""
TIE = 0.1
"""Estimates closer to 1 than this are ties: `sdpa` is taken, which needs no score matrix in memory."""


@dataclass(frozen=True)
class Rates:
    """What kernels reach on a device, forward and backward.

    Attributes:
        capability: The compute capability.
        plain: TFLOP/s of plain torch, which computes scores in float32.
        bandwidth: TB/s of its memory.
        flash: TFLOP/s of flash attention in 16 bits.
        dense: TFLOP/s of the memory-efficient kernel in 16 bits, which takes dense masks and biases.
        single: TFLOP/s of the memory-efficient kernel in float32.
        source: Where the largest of the figures are published.
    """

    capability: tuple[int, int]
    plain: float
    bandwidth: float
    flash: tuple[float, float]
    dense: tuple[float, float]
    single: tuple[float, float]
    source: str


RATES = (
    Rates((8, 0), 15.0, 1.4, (190.0, 130.0), (90.0, 50.0), (14.0, 11.0), "https://arxiv.org/abs/2307.08691"),
    Rates((9, 0), 50.0, 2.8, (350.0, 240.0), (160.0, 100.0), (45.0, 35.0), "https://arxiv.org/abs/2407.08608"),
)


def eager_time(rates: Rates, gradients: bool, dropout: bool, masked: bool, biased: bool) -> float:
    """Picoseconds of a pair. Scores are written and read between operations: 16 bytes, 8 more with a mask, 8 with a bias, 9
    with dropout; 40 in the backward pass."""
    moved = 16 + 8 * masked + 8 * biased + 9 * dropout
    forward = 4 * D / rates.plain + moved / rates.bandwidth
    return forward + (8 * D / rates.plain + 40 / rates.bandwidth if gradients else 0.0)


def sdpa_time(rates: Rates, dtypes: frozenset[str], gradients: bool, masked: bool, biased: bool) -> float:
    """Picoseconds of a pair, in the kernel that torch takes. A dense mask or bias is read once in each pass."""
    dense = masked or biased
    forward, backward = rates.single if dtypes == SINGLE else rates.dense if dense else rates.flash
    read = (4 if dtypes == SINGLE else 2) * dense / rates.bandwidth
    return 4 * D / forward + read + (10 * D / backward + read if gradients else 0.0)


def sdpa_rows() -> Iterator[AutoRow]:
    """A row for each class of calls of each device of RATES, then one for all other devices."""
    for rates in RATES:
        how = f"roofline with the rates of {rates.source}"
        for dtypes, ratio in ((SHORT, 0.2), (SINGLE, 0.5)):  # bytes of the cache that are read: 2 of 10, and 4 of 8
            yield AutoRow(
                device="cuda", capability=rates.capability, dtypes=dtypes, decoding=True, relative_time=ratio, estimated=how
            )  # fmt: skip
        flags = product((False, True), repeat=4)
        for dtypes, (gradients, dropout, masked, biased) in product((SHORT, SINGLE), list(flags)):
            ratio = sdpa_time(rates, dtypes, gradients, masked, biased) / eager_time(rates, gradients, dropout, masked, biased)
            tie = ratio > 1.0 - TIE
            is_published = rates.capability == (9, 0) and dtypes == SHORT and not (dropout or masked or biased)
            lengths = (1, PUBLISHED_FROM - 1 if is_published else None)
            yield AutoRow(
                device="cuda", capability=rates.capability, dtypes=dtypes, gradients=gradients, dropout=dropout, masked=masked,
                biased=biased, lengths=lengths, relative_time=round(min(ratio, 1.0 - TIE), 2),
                estimated=f"{how}{', a tie' if tie else ''}",
            )  # fmt: skip
    unknown = "no figure for such calls on this device, taken as a tie"
    yield AutoRow(device="cuda", dtypes=SHORT | SINGLE, relative_time=1.0 - TIE, estimated=unknown)
