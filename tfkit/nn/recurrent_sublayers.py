"""Sub-layers of a decoder whose step costs the same at every position: SSRU and average attention.

Both stand in the place of self-attention. They keep a state of a few numbers instead of the keys and values of all tokens. A
token reads itself and what comes before it; padding leaves the state as it is.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .runtime.context import StackContext


class Recurrence(nn.Module):
    """A sub-layer with a state. While decoding, the state after the last token is that of `DecodingState.recurrent`.

    Args:
        name: name of the sub-layer in its layer.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def _before(self, context: StackContext, index: int, like: Tensor, *widths: int) -> tuple[Tensor, ...]:
        """The state before the first token of this call; zeros (B, width) before the first one of all."""
        known = None if context.state is None else context.state.recurrent.get(self._site(context, index))
        if known is None:
            known = tuple(like.new_zeros(like.shape[0], width) for width in widths)
            if context.state is not None:
                context.state.recurrent[self._site(context, index)] = known
        return known

    def _keep(self, context: StackContext, index: int, *state: Tensor) -> None:
        """Keep the state after the last token of this call."""
        if context.state is not None:
            context.state.recurrent_new[self._site(context, index)] = state

    def _site(self, context: StackContext, index: int) -> str:
        return f"{context.stack}.{index}.{self.name}"

    @staticmethod
    def _visible(context: StackContext, length: int) -> Tensor | None:
        """(B, L, 1) False for padding, of the tokens of this call; None if none is padding."""
        visible = context.padding.as_visible(context.offset + length)
        return None if visible is None else visible[:, context.offset :, None]


class Ssru(Recurrence):
    """f_t = sigmoid(W_f x_t + b_f),  c_t = f_t * c_{t-1} + (1 - f_t) * W x_t,  o_t = relu(c_t), on (B, L, M).

    Args:
        name: name of the sub-layer in its layer.
        input: the map W x, M -> M.
        forget: the map W_f x + b_f, M -> M.

    Reference: Kim et al. 2019, https://aclanthology.org/D19-5632
    """

    def __init__(self, name: str, input: nn.Module, forget: nn.Module) -> None:
        super().__init__(name)
        self.input, self.forget = input, forget

    def forward(self, x: Float[Tensor, "B L M"], context: StackContext, index: int) -> Float[Tensor, "B L M"]:
        """Read the tokens.

        Args:
            x: (B, L, M); while decoding, the new tokens only.
            context: the current call of the stack.
            index: the application of the layer.
        """
        keep = torch.sigmoid(self.forget(x))
        new = (1.0 - keep) * self.input(x)
        if (visible := self._visible(context, x.shape[1])) is not None:
            keep, new = keep.masked_fill(~visible, 1.0), new.masked_fill(~visible, 0.0)
        (before,) = self._before(context, index, new, x.shape[2])
        states = scan(keep, new, before)
        self._keep(context, index, states[:, -1])
        return torch.relu(states)


def scan(keep: Float[Tensor, "B L M"], new: Float[Tensor, "B L M"], first: Float[Tensor, "B M"]) -> Float[Tensor, "B L M"]:
    """c_t = keep_t * c_{t-1} + new_t for all t, with c_0 = first.

    In each round every position takes in what the one `step` before it has read so far, so that log2(L) rounds suffice (Hillis
    and Steele 1986). Only products of numbers from 0 to 1 and sums occur: nothing is divided, and no number grows.
    """
    length, step = new.shape[1], 1
    start = torch.addcmul(new[:, :1], keep[:, :1], first[:, None])
    new = start if length == 1 else torch.cat([start, new[:, 1:]], 1)
    while step < length:
        later = torch.addcmul(new[:, step:], keep[:, step:], new[:, :-step])
        keep = torch.cat([keep[:, :step], keep[:, step:] * keep[:, :-step]], 1)
        new = torch.cat([new[:, :step], later], 1)
        step *= 2
    return new


class AverageAttention(Recurrence):
    """g_t = FFN(mean of x_1 .. x_t),  [i_t; f_t] = sigmoid(W [x_t; g_t] + b),  o_t = i_t * x_t + f_t * g_t, on (B, L, M).

    Args:
        name: name of the sub-layer in its layer.
        ffn: the feed-forward layer, M -> M.
        gate: the map W [x; g] + b, 2 M -> 2 M; None for o_t = g_t.

    Reference: Zhang et al. 2018, https://aclanthology.org/P18-1166
    """

    def __init__(self, name: str, ffn: nn.Module, gate: nn.Module | None) -> None:
        super().__init__(name)
        self.ffn, self.gate = ffn, gate

    def forward(self, x: Float[Tensor, "B L M"], context: StackContext, index: int) -> Float[Tensor, "B L M"]:
        """Read the tokens.

        Args:
            x: (B, L, M); while decoding, the new tokens only.
            context: the current call of the stack.
            index: the application of the layer.
        """
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        visible = self._visible(context, x.shape[1])
        ones = wide.new_ones(x.shape[0], x.shape[1], 1)
        if visible is not None:
            wide, ones = wide.masked_fill(~visible, 0.0), ones.masked_fill(~visible, 0.0)
        total, count = self._before(context, index, wide, x.shape[2], 1)
        sums, counts = total[:, None] + wide.cumsum(1), count[:, None] + ones.cumsum(1)
        self._keep(context, index, sums[:, -1], counts[:, -1])
        read: Tensor = self.ffn((sums / counts.clamp(min=1.0)).to(x.dtype), context, index)
        if self.gate is None:
            return read
        of_token, of_mean = torch.sigmoid(self.gate(torch.cat([x, read], 2))).chunk(2, 2)
        mixed: Tensor = of_token * x + of_mean * read
        return mixed
