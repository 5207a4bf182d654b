"""Logits of the first and the last position of a span, such as an answer in a text (BERT, section 4.2).

start_t = w_s . x_t + b_s,   end_t = w_e . x_t + b_e           https://aclanthology.org/N19-1423/
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .runtime.context import ForwardContext
from .runtime.node_output import NodeOutput


class SpanLogits(nn.Module):
    """Start and end logits (B, L, 2) of the positions of a sequence; the smallest finite number where no span may be.

    Args:
        linear: the map M -> 2.
        end_id: the end token of a row `<s> first </s> second </s>` whose spans are in the second text or at the first token;
            None if a span may be anywhere but in padding.
    """

    def __init__(self, linear: nn.Linear, end_id: int | None) -> None:
        super().__init__()
        self.linear, self.end_id = linear, end_id

    def forward(self, context: ForwardContext, input: NodeOutput, tokens: NodeOutput | None = None) -> NodeOutput:
        """The logits.

        Args:
            context: the current call of the model.
            input: (B, L, M).
            tokens: the output of the tokens node, whose ids contain the end tokens.

        Returns:
            (B, L, 2), with the padding of the input.
        """
        x = self.linear(input.tensor)
        allowed = input.padding.as_visible(x.shape[1])
        if tokens is not None and self.end_id is not None:
            assert tokens.ids is not None
            allowed = second_text(tokens.ids, self.end_id, allowed)
        if allowed is not None:
            x = x.masked_fill(~allowed.unsqueeze(2), torch.finfo(x.dtype).min)
        return NodeOutput(x, input.padding, input.ids)


def second_text(ids: Tensor, end_id: int, visible: Tensor | None) -> Tensor:
    """(B, L) bool: the tokens after the first end token of each row of `ids` (B, L), without end tokens and padding, and the
    first token. Tokens that are `visible` (B, L) are no padding."""
    visible = torch.ones_like(ids, dtype=torch.bool) if visible is None else visible
    ends = (ids == end_id) & visible
    first = visible & (visible.cumsum(1) == 1)
    return first | ((ends.cumsum(1) > 0) & ~ends & visible)
