"""Length penalties, which make the scores of hypotheses of different lengths comparable.

    score(Y) = log P(Y) / penalty(|Y|)

|Y| counts the generated tokens with the end token, without the start token and the prompt. Without a penalty, beam search
prefers short hypotheses, since every token lowers the probability. The two common penalties are different functions of alpha.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from ..errors.arguments import check_number

Length = TypeVar("Length", Tensor, float)
MOST_ALPHA = 10.0
"""With a larger exponent the penalty of thousands of tokens exceeds float32."""


@dataclass(frozen=True)
class GnmtLengthPenalty:
    """penalty = ((5 + |Y|) / 6)^alpha, without the coverage penalty, which is not defined for several attention heads.

    Args:
        alpha: From 0, no penalty. "Attention Is All You Need" uses 0.6.

    Raises:
        InputError: alpha is above 10, or below 0: scores would grow with the length without a bound.

    Reference:
        Wu et al. 2016, equation 14. https://arxiv.org/abs/1609.08144
    """

    alpha: float = 0.6

    def __post_init__(self) -> None:
        check_number("alpha of GnmtLengthPenalty", self.alpha, MOST_ALPHA, "no penalty")

    def at(self, length: Length) -> Length:
        """The penalty for a length.

        Args:
            length: |Y|, a number or a tensor.

        Returns:
            The divisor of log P(Y), in the shape of `length`.
        """
        return ((5.0 + length) / 6.0) ** self.alpha  # type: ignore[no-any-return]


@dataclass(frozen=True)
class PowerLengthPenalty:
    """penalty = |Y|^alpha: `lenpen` of fairseq, `--normalize` of Marian, `length_penalty` of Hugging Face and CTranslate2.

    Args:
        alpha: From 0, no penalty. 1 ranks by the mean log-probability per token.

    Raises:
        InputError: alpha is below 0 or above 10.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_number("alpha of PowerLengthPenalty", self.alpha, MOST_ALPHA, "no penalty")

    def at(self, length: Length) -> Length:
        """The penalty for a length.

        Args:
            length: |Y|, a number or a tensor.

        Returns:
            The divisor of log P(Y), in the shape of `length`.
        """
        return length**self.alpha  # type: ignore[no-any-return]


LengthPenalty = GnmtLengthPenalty | PowerLengthPenalty
