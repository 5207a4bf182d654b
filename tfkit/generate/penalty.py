"""Length penalties: what turns the log-probability of a hypothesis Y into the score that hypotheses of different lengths are
compared by. |Y| counts the tokens made, the end token included, the start token and the prompt not.

    score(Y) = log P(Y) / penalty(|Y|)

Without one, a search for the most probable hypothesis prefers short ones: every further token costs probability. The two
penalties in use are not the same function of alpha: 0.6 in one is not 0.6 in the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from ..errors import Diagnostic, InputError

Length = TypeVar("Length", Tensor, float)


@dataclass(frozen=True)
class GnmtLengthPenalty:
    """((5 + |Y|) / 6)^alpha, Wu et al. 2016, equation 14 (https://arxiv.org/abs/1609.08144), with which "Attention Is All You
    Need" decodes, alpha 0.6. Their coverage penalty is left out: which of a Transformer's many attentions it would add up is
    nowhere said. Raises InputError for an alpha below 0, under which a hypothesis might gain by growing without end."""

    alpha: float = 0.6

    def __post_init__(self) -> None:
        _check("GnmtLengthPenalty", self.alpha)

    def at(self, length: Length) -> Length:
        """The penalty at |Y| = `length`."""
        return ((5.0 + length) / 6.0) ** self.alpha  # type: ignore[no-any-return]


@dataclass(frozen=True)
class PowerLengthPenalty:
    """|Y|^alpha: the `lenpen` of fairseq, `--normalize` of Marian, `length_penalty` of Hugging Face and CTranslate2. alpha 1 is
    the mean log-probability per token. Raises InputError for an alpha below 0."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check("PowerLengthPenalty", self.alpha)

    def at(self, length: Length) -> Length:
        """The penalty at |Y| = `length`."""
        return length**self.alpha  # type: ignore[no-any-return]


LengthPenalty = GnmtLengthPenalty | PowerLengthPenalty


def _check(name: str, alpha: float) -> None:
    number = isinstance(alpha, (int, float)) and not isinstance(alpha, bool)
    if not number or not math.isfinite(alpha) or alpha < 0:
        raise InputError(Diagnostic("TFK078", f"alpha of {name} is {alpha!r}", "it is a number from 0 (no penalty) up"))
