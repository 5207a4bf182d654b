"""The convolution module of Conformer, Gulati et al. 2020, section 2.2, with one norm less, which the placement brings:

x -> GLU(x W_1) -> depthwise convolution over tokens -> SiLU -> W_2
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from tfkit.plugin.model_parts import StackContext, SublayerContext, Wiring

from . import ConvolutionOptions


class Convolution(nn.Module):
    """(B, L, M) -> (B, L, M). Padding counts as zeros, as positions outside of the sequence do."""

    def __init__(self, width: int, window: int) -> None:
        super().__init__()
        self.enter = nn.Linear(width, 2 * width)
        self.window = nn.Conv1d(width, width, window, padding=window // 2, groups=width)
        self.leave = nn.Linear(width, width)

    def forward(self, x: Tensor, context: StackContext, index: int) -> Tensor:
        x = functional.glu(self.enter(x))
        visible = context.padding.as_visible(x.shape[1])
        if visible is not None:
            x = x.masked_fill(~visible.unsqueeze(2), 0.0)
        x = self.window(x.transpose(1, 2)).transpose(1, 2)  # Conv1d wants (B, M, L)
        return self.leave(functional.silu(x))


def build(options: ConvolutionOptions, context: SublayerContext, wiring: Wiring) -> nn.Module:
    return Convolution(context.width, options.width)
