"""The tokens of a search so far, as score filters see them."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class Prefix:
    """The tokens before the next one of R rows: greedy sequences, samples or live hypotheses.

    Attributes:
        ids: (R, N) the start token or the prompt, then the generated tokens; -1 for padding of a prompt.
        generated: how many of the N tokens were generated.
        remaining: (R,) how many tokens a row may still get, the next one included.
        end_id: the end token of the target, or None.
    """

    ids: Int[Tensor, "R N"]
    generated: int
    remaining: Int[Tensor, " R"]
    end_id: int | None
