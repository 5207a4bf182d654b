"""Published rates of attention on CUDA beside plain torch's, and the rows of the table of `auto` that follow from them.

All are of forward passes in 16 bits without causality, mask, bias and dropout, in TFLOP/s. The relative time of a kernel is the
rate of plain torch divided by its own. A row takes the slower of the kernels that torch may choose, and lengths between two
measured ones a and b change at sqrt(a b). Two sources measured head dim 128 on an H100, one of them on the slower PCIe card:
their relative times of cuDNN differ by up to 1.9, and both put it far before plain torch. No second source with plain torch was
found for head dim 64, for backward passes, or for an A100.
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
        lengths: Queries and keys of each figure.
        plain: TFLOP/s of plain torch.
        kernels: TFLOP/s of each kernel, where it was measured.
    """

    source: str
    date: str
    device: str
    capability: tuple[int, int]
    head_dim: int
    lengths: tuple[int, ...]
    plain: tuple[float, ...]
    kernels: dict[str, tuple[float, ...]]

    def relative(self, kernel: str) -> dict[int, float]:
        """The time of a kernel relative to plain torch, by length."""
        found = zip(self.lengths, self.plain, self.kernels[kernel], strict=True)
        return {length: plain / rate for length, plain, rate in found}


PAPER, PULL = "https://arxiv.org/abs/2407.08608", "https://github.com/Dao-AILab/flash-attention/pull/1075"
SXM = "H100 80GB SXM5"
SOURCES = (
    Published(PAPER, "2024-07", SXM, (9, 0), 64, (512, 1024, 2048, 4096, 8192), (52, 63, 67, 72, 73),
              {"flash": (282, 306, 318, 321, 322), "cudnn": (335, 373, 395, 408, 412)}),
    Published(PAPER, "2024-07", SXM, (9, 0), 128, (512, 1024, 2048, 4096, 8192), (74, 100, 119, 133, 139),
              {"flash": (309, 350, 362, 368, 370), "cudnn": (497, 574, 617, 609, 600)}),
    Published(PULL, "2024-07-19", "H100 PCIe", (9, 0), 128, (512, 1024, 2048, 4224, 8448), (52.28, 66.04, 73.80, 68.44, 78.47),
              {"cudnn": (539.92, 627.66, 674.59, 612.95, 668.55)}),
)  # fmt: skip


def _row(head_dims: tuple[int, int], lengths: tuple[int, int | None], relative_time: float) -> AutoRow:
    return AutoRow(
        device="cuda", capability=(9, 0), dtypes=SHORT, head_dims=head_dims, lengths=lengths, dropout=False, masked=False,
        biased=False, decoding=False, relative_time=relative_time, published=PAPER,
    )  # fmt: skip


ROWS = (
    _row((1, 64), (512, None), 0.2), _row((65, 128), (512, 724), 0.24), _row((65, 128), (725, 1448), 0.29),
    _row((65, 128), (1449, None), 0.36),
)  # fmt: skip
"""`sdpa` on an H100, from lengths of 512 up, with flash's rates of figure 5. A test compares them with SOURCES."""
