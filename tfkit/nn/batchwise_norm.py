"""Norms with statistics over a batch, and how every norm of a sequence is applied."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from .runtime.node_output import Padding


class BatchwiseNorm(nn.Module):
    """A norm whose statistics in training are over the batch.

    In evaluation it normalises each token alone. In training its statistics are over the tokens that are not padding.
    """

    def forward(self, x: Float[Tensor, "*batch M"], real: Bool[Tensor, "*batch"] | None = None) -> Float[Tensor, "*batch M"]:
        """The norm.

        Args:
            x: (B, L, M) or (B, M).
            real: (B, L), False for padding, which the statistics do not count; None if no token is padding.

        Returns:
            The shape and dtype of x.
        """
        raise NotImplementedError


def normed(norm: nn.Module, x: Tensor, padding: Padding) -> Tensor:
    """Apply a norm; one over the batch does not count padding.

    Args:
        norm: a module from (..., M) to (..., M).
        x: (B, L, M), or (B, M) without padding.
        padding: the padding of the sequence.

    Returns:
        The shape of x.
    """
    if isinstance(norm, BatchwiseNorm) and norm.training:
        return norm(x, padding.as_visible(x.shape[1]))  # type: ignore[no-any-return]
    return norm(x)  # type: ignore[no-any-return]
