"""Published rates of attention on CUDA beside plain torch's, and the rows of the table of `auto` that follow from them.

All are in 16 bits without causality, mask, bias and dropout, in TFLOP/s: of forward passes, or of forward and backward passes
together. The relative time of a kernel is the rate of plain torch divided by its own. A row takes the slower of the kernels
that torch may choose, and lengths between two measured ones a and b change at sqrt(a b).

Two sources measured the same on an H100 for head dim 128, forward, and for head dim 64, forward and with gradients. Their
relative times differ by up to 2.0 and 1.6, and all put the kernels far before plain torch. There is one source for head dim 128
with gradients, for a B200 and for an RTX A5000, and none with plain torch for an A100.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...attention.auto_table import AutoRow
from .auto_cuda import SHORT


@dataclass(frozen=True)
class Published:
    """Rates by length.

    Attributes:
        source: Where they are published.
        date: When.
        device: What they were measured on.
        capability: Its compute capability.
        head_dim: Features of a head.
        gradients: Whether the rates are of forward and backward passes together, else of forward passes.
        lengths: Queries and keys of each figure.
        plain: TFLOP/s of plain torch.
        kernels: TFLOP/s of each kernel, where it was measured.
    """

    source: str
    date: str
    device: str
    capability: tuple[int, int]
    head_dim: int
    gradients: bool
    lengths: tuple[int, ...]
    plain: tuple[float, ...]
    kernels: dict[str, tuple[float, ...]]

    def relative(self, kernel: str) -> dict[int, float]:
        """The time of a kernel relative to plain torch, by length."""
        rates = zip(self.lengths, self.plain, self.kernels[kernel], strict=True)
        return {length: plain / rate for length, plain, rate in rates}


def both(forward: tuple[float, ...], backward: tuple[float, ...]) -> tuple[float, ...]:
    """Rates in TFLOP/s of forward and backward passes, one after the other. A backward pass counts as 2.5 forward passes, by
    its products."""
    return tuple(3.5 / (1 / first + 2.5 / second) for first, second in zip(forward, backward, strict=True))


PAPER, PULL = "https://arxiv.org/abs/2407.08608", "https://github.com/Dao-AILab/flash-attention/pull/1075"
STABLE = "https://github.com/Dao-AILab/flash-attention/pull/2688"
AMPERE, BLACKWELL = (
    "https://github.com/gpu-mode/ring-attention/issues/10",
    "https://github.com/Dao-AILab/flash-attention/issues/1589",
)
SXM, LIKE_SXM = "H100 80GB SXM5", "not named; flash attention reaches the rates of an H100 SXM5 within 11 %"
LENGTHS = (512, 1024, 2048, 4096, 8192)
PLAIN_64, FLASH_64, CUDNN_64 = (52, 63, 67, 72, 73), (282, 306, 318, 321, 322), (335, 373, 395, 408, 412)
PLAIN_128, FLASH_128, CUDNN_128 = (74, 100, 119, 133, 139), (309, 350, 362, 368, 370), (497, 574, 617, 609, 600)
"""Of figure 5 of PAPER."""
SOURCES = (
    Published(PAPER, "2024-07", SXM, (9, 0), 64, False, LENGTHS, PLAIN_64, {"flash": FLASH_64, "cudnn": CUDNN_64}),
    Published(PAPER, "2024-07", SXM, (9, 0), 128, False, LENGTHS, PLAIN_128, {"flash": FLASH_128, "cudnn": CUDNN_128}),
    # Backward: figure 6, whose bars have their figures written on them.
    Published(PAPER, "2024-07", SXM, (9, 0), 64, True, LENGTHS, both(PLAIN_64, (68, 76, 88, 92, 95)),
              {"flash": both(FLASH_64, (198, 238, 264, 279, 287)), "cudnn": both(CUDNN_64, (266, 348, 395, 417, 432))}),
    Published(PAPER, "2024-07", SXM, (9, 0), 128, True, LENGTHS, both(PLAIN_128, (104, 131, 159, 174, 181)),
              {"flash": both(FLASH_128, (214, 260, 291, 310, 318)), "cudnn": both(CUDNN_128, (305, 408, 465, 499, 518))}),
    Published(PULL, "2024-07-19", "H100 PCIe", (9, 0), 128, False, (512, 1024, 2048, 4224, 8448),
              (52.28, 66.04, 73.80, 68.44, 78.47), {"cudnn": (539.92, 627.66, 674.59, 612.95, 668.55)}),
    Published(STABLE, "2026-06", LIKE_SXM, (9, 0), 64, False, LENGTHS, (43.26, 50.63, 50.22, 48.96, 44.60),
              {"flash": (252.53, 295.27, 310.09, 310.32, 306.62)}),
    Published(STABLE, "2026-06", LIKE_SXM, (9, 0), 64, True, LENGTHS, (48.82, 55.16, 60.07, 61.28, 60.02),
              {"flash": (203.84, 252.81, 270.56, 287.89, 301.72)}),
    Published(AMPERE, "2024-02-22", "RTX A5000", (8, 6), 64, False, LENGTHS[:4], (14.52, 16.72, 15.50, 18.56),
              {"flash": (84.08, 81.02, 81.31, 81.69)}),
    Published(AMPERE, "2024-02-22", "RTX A5000", (8, 6), 64, True, LENGTHS[:4], (16.25, 18.36, 17.66, 19.34),
              {"flash": (59.15, 66.90, 72.95, 76.64)}),
    Published(BLACKWELL, "2025-04-13", "B200", (10, 0), 64, False, LENGTHS, (76.05, 88.67, 57.73, 68.98, 62.18),
              {"flash": (308.40, 359.30, 380.99, 306.94, 343.07)}),
    Published(BLACKWELL, "2025-04-13", "B200", (10, 0), 64, True, LENGTHS, (96.63, 110.75, 108.87, 122.75, 115.74),
              {"flash": (258.71, 299.37, 320.70, 312.45, 332.97)}),
)  # fmt: skip


def _row(
    source: str, capability: tuple[int, int], gradients: bool, head_dims: tuple[int, int], lengths: tuple[int, int | None],
    relative_time: float,
) -> AutoRow:  # fmt: skip
    return AutoRow(
        device="cuda", capability=capability, dtypes=SHORT, head_dims=head_dims, lengths=lengths, gradients=gradients,
        dropout=False, masked=False, biased=False, decoding=False, relative_time=relative_time, published=source,
    )  # fmt: skip


ROWS = (
    _row(PAPER, (9, 0), False, (1, 64), (512, None), 0.2), _row(PAPER, (9, 0), True, (1, 64), (512, None), 0.29),
    _row(PAPER, (9, 0), False, (65, 128), (512, 724), 0.24), _row(PAPER, (9, 0), True, (65, 128), (512, 724), 0.4),
    _row(PAPER, (9, 0), False, (65, 128), (725, 1448), 0.29), _row(PAPER, (9, 0), True, (65, 128), (725, 1448), 0.43),
    _row(PAPER, (9, 0), False, (65, 128), (1449, None), 0.36), _row(PAPER, (9, 0), True, (65, 128), (1449, None), 0.49),
    _row(AMPERE, (8, 6), False, (1, 64), (512, None), 0.2), _row(AMPERE, (8, 6), True, (1, 64), (512, None), 0.26),
    _row(BLACKWELL, (10, 0), False, (1, 64), (512, None), 0.21), _row(BLACKWELL, (10, 0), True, (1, 64), (512, None), 0.36),
)  # fmt: skip
"""`sdpa` from lengths of 512 up, with flash's rates. A test compares them with SOURCES."""
