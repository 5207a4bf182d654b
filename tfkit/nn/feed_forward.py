"""The position-wise feed-forward layer

plain   output(f(input(x)))                 Vaswani et al. 2017, eq. 2
gated   output(f(gate(x)) * input(x))       Shazeer 2020, https://arxiv.org/abs/2002.05202
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from .fast_layers import Dropout
from .runtime.context import StackContext


class FeedForward(nn.Module):
    """The position-wise feed-forward layer, (B, L, M) -> (B, L, M).

    Args:
        input: linear map M -> d_ff.
        gate: linear map M -> d_ff of a gated layer, None for a plain one.
        output: linear map d_ff -> M.
        activate: elementwise function of the inner features, or of the gate if there is one.
        dropout: probability that an inner feature is dropped in training.

    Reference: https://arxiv.org/abs/1706.03762, equation 2; gated: https://arxiv.org/abs/2002.05202
    """

    def __init__(
        self, input: nn.Linear, gate: nn.Linear | None, output: nn.Linear, activate: Callable[[Tensor], Tensor], dropout: float
    ) -> None:
        super().__init__()
        self.input, self.gate, self.output = input, gate, output
        self.activate = activate
        self.dropout = Dropout(dropout) if dropout > 0.0 else None

    def forward(self, x: Float[Tensor, "B L M"], context: StackContext, index: int) -> Float[Tensor, "B L M"]:
        """The layer at every position.

        Args:
            x: (B, L, M).
            context: the current call of the stack.
            index: which application of the layer this is; not used.

        Returns:
            (B, L, M)
        """
        features = self.input(x)  # (B, L, d_ff)
        features = self.activate(features) if self.gate is None else self.activate(self.gate(x)) * features
        if self.dropout is not None:
            features = self.dropout(features)
        return self.output(features)  # type: ignore[no-any-return]
