"""The settings of a search, as one checked value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from ..errors import Diagnostic, InputError
from ..errors.arguments import check_number, check_whole
from .beam import GNMT, EarlyStopping, Unfinished, check_beams
from .penalty import LengthPenalty
from .prefill import MOST_TOKENS
from .sample import check_sampling
from .score_filters import Filter, filters_of

SETTINGS_OF = {
    "greedy": frozenset[str](),
    "beam": frozenset({"beams", "length_penalty", "n_best", "early_stopping", "unfinished"}),
    "sample": frozenset({"n_best", "temperature", "top_k", "top_p", "seed"}),
}
"""The settings that only this kind of search has."""


@dataclass(frozen=True)
class Search:
    """The settings of a search over many sources.

    A source of L tokens may get floor(length_factor * L) + extra_length new tokens, the end token included.

    Args:
        kind: `greedy`, `beam` or `sample`.
        beams: For `beam`, live hypotheses per source.
        length_penalty: For `beam`, divides the log-probability.
        n_best: Hypotheses per source (`beam`), or samples per source (`sample`).
        early_stopping: For `beam`, as in `tfkit.beam_search`.
        unfinished: For `beam`, as in `tfkit.beam_search`.
        temperature: For `sample`, as in `tfkit.sample`.
        top_k: For `sample`, as in `tfkit.sample`.
        top_p: For `sample`, as in `tfkit.sample`.
        seed: For `sample`, as in `tfkit.sample`.
        length_factor: New tokens per source token; 1 in "Attention Is All You Need".
        extra_length: Further new tokens; 50 in "Attention Is All You Need".
        filters: Change the scores of the next token, as in `tfkit.greedy` and `tfkit.beam_search`.
        special_tokens: Whether `Translator` and `TextGenerator` may generate the padding, start and unknown tokens. They forbid
            these unless one is the end token. Functions on ids do not read it.

    Raises:
        InputError: A value is out of range, or a setting of another kind is given.
    """

    kind: Literal["greedy", "beam", "sample"] = "beam"
    beams: int = 5
    length_penalty: LengthPenalty = GNMT
    n_best: int = 1
    early_stopping: EarlyStopping = "never"
    unfinished: Unfinished = "last"
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    length_factor: float = 1.0
    extra_length: int = 50
    filters: Sequence[Filter] = ()
    special_tokens: bool = False

    def __post_init__(self) -> None:
        if self.kind not in SETTINGS_OF:
            raise InputError(
                Diagnostic("TFK078", f"the kind of search is {self.kind!r}", f"it is one of {', '.join(SETTINGS_OF)}")
            )
        for setting in fields(self):
            name, value = setting.name, getattr(self, setting.name)
            owners = [kind for kind, names in SETTINGS_OF.items() if name in names]
            if owners and self.kind not in owners and value != setting.default:
                message = f"{name} is {value!r}, which a {self.kind} search does not read"
                raise InputError(Diagnostic("TFK078", message, f"leave it out, or make the kind {' or '.join(owners)}"))
        if self.kind == "beam":
            check_beams(self.beams, self.n_best, self.length_penalty, self.early_stopping, self.unfinished)
        elif self.kind == "sample":
            check_sampling(self.temperature, self.top_k, self.top_p, self.seed, self.n_best)
        filters_of(self.filters)
        if not isinstance(self.special_tokens, bool):
            raise InputError(Diagnostic("TFK078", f"special_tokens is {self.special_tokens!r}", "it is True or False"))
        object.__setattr__(self, "filters", tuple(self.filters))  # equal searches have one hash
        factor, extra = self.length_factor, self.extra_length
        check_number("length_factor", factor, MOST_TOKENS)
        check_whole("extra_length", extra, 0, MOST_TOKENS)
        if factor == extra == 0:
            raise InputError(Diagnostic("TFK078", "extra_length and length_factor are 0", "one of them is above 0"))

    @property
    def width(self) -> int:
        """The rows that each source takes in a batch."""
        return {"greedy": 1, "beam": self.beams, "sample": self.n_best}[self.kind]

    def limit(self, length: int) -> int:
        """The limit of new tokens.

        Args:
            length: the number of tokens of the source.

        Returns:
            The largest number of new tokens, at least one.
        """
        return min(max(1, math.floor(self.length_factor * length) + self.extra_length), MOST_TOKENS)
