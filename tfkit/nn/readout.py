"""What stands around the recurrence of a decoder: its first state, and the layer between state and logits.

first state   tanh(W v + b), v = one vector of the memory
linear        W [s; y; c] + b                     s the state, y the input token, c the context
tanh          tanh(W [s; y; c] + b)               Luong et al. 2015, equation 5
maxout        max(t_2j-1, t_2j), t = W [s; y; c] + b      Bahdanau et al. 2015, appendix A.2.2; Goodfellow et al. 2013
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .heads import pooled
from .layers import Dropout
from .runtime.node_output import NodeOutput


class InitialState(nn.Module):
    """One vector of the memory -> the states of all layers side by side.

    Args:
        take: `last`, `mean`, or `first_backward`: the first token's state of a backward cell.
        width: features of that vector; those of a backward cell are the last ones of the memory.
        linear: (width -> features of all states).
    """

    def __init__(self, take: str, width: int, linear: nn.Linear) -> None:
        super().__init__()
        self.take, self.width, self.linear = take, width, linear

    def forward(self, memory: NodeOutput) -> Tensor:
        """(B, L, C) or (B, C) -> (B, features of all states)."""
        x = memory.tensor
        if x.dim() == 3:
            take = "first" if self.take == "first_backward" else self.take
            x = pooled(x, memory.padding.as_visible(x.shape[1]), take)
        return torch.tanh(self.linear(x[:, -self.width :]))


class Readout(nn.Module):
    """State, input token and context -> (..., d_model).

    Args:
        kind: `linear`, `tanh` or `maxout`.
        linear: from what it reads, side by side, to d_model features (`maxout`: twice as many).
        reads: of `state`, `input` and `context`, in this order.
        dropout: dropout of the result.
    """

    def __init__(self, kind: str, linear: nn.Linear, reads: tuple[str, ...], dropout: float) -> None:
        super().__init__()
        self.kind, self.linear, self.reads = kind, linear, reads
        self.width = linear.out_features // (2 if kind == "maxout" else 1)
        self.dropout = Dropout(dropout) if dropout > 0.0 else None

    def forward(self, parts: Mapping[str, Tensor | None]) -> Tensor:
        """`parts` are (..., width) by name."""
        x: Tensor = self.linear(torch.cat([parts[name] for name in self.reads], -1))  # type: ignore[misc]
        if self.kind == "tanh":
            x = torch.tanh(x)
        elif self.kind == "maxout":
            x = torch.maximum(x[..., ::2], x[..., 1::2])
        return x if self.dropout is None else self.dropout(x)
