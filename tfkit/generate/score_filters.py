"""Score filters in a search. Greedy decoding and sampling filter logits, a beam search log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from ..errors import Diagnostic, InputError
from ..errors.arguments import in_words
from ..nn.prefix import Prefix
from ..slots.lazy import load
from ..slots.options import Component
from ..slots.score_filter import ScoreFilter

Filter = Component | Callable[[Tensor, Prefix], Tensor]
"""A part of the slot `score_filter` with its options, or a function of the scores (R, V) and the prefix."""


class ScoreFilters:
    """The filters of one search, applied in their order. `bool` of it says whether there are any."""

    def __init__(self, filters: Iterable[Filter]) -> None:
        self.functions = [_function(one) for one in filters]

    def __bool__(self) -> bool:
        return bool(self.functions)

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        """The filtered scores (R, V) of the next token.

        Raises:
            InputError: a filter returns something else than scores of that shape and dtype.
        """
        for function in self.functions:
            filtered = function(scores, prefix)
            if not isinstance(filtered, Tensor) or filtered.shape != scores.shape or filtered.dtype != scores.dtype:
                expected = f"{tuple(scores.shape)} {scores.dtype}"
                got = f"{tuple(filtered.shape)} {filtered.dtype}" if isinstance(filtered, Tensor) else in_words(filtered)
                message = f"a score filter returned {got} for scores {expected}"
                raise InputError(Diagnostic("TFK078", message, "return scores of the same shape and dtype"))
            scores = filtered
        return scores


NO_FILTERS = ScoreFilters(())


def filters_of(filters: Any) -> ScoreFilters:
    """The filters that a caller gives. Raises InputError unless they are a list of filters."""
    if isinstance(filters, (str, bytes)) or not isinstance(filters, Sequence):
        message = f"filters is {in_words(filters)}"
        raise InputError(Diagnostic("TFK078", message, 'give a list: [tfkit.score_filter("min_tokens", tokens=5)]'))
    for one in filters:
        if not (isinstance(one.entry, ScoreFilter) if isinstance(one, Component) else callable(one)):
            message = f"a filter is {in_words(one)}"
            raise InputError(
                Diagnostic("TFK078", message, "it is a tfkit.score_filter(...), or a function of scores and prefix")
            )
    return ScoreFilters(filters)


def _function(one: Filter) -> Callable[[Tensor, Prefix], Tensor]:
    if not isinstance(one, Component):
        return one
    function: Callable[[Tensor, Prefix, Any], Tensor] = load(one.entry.function)
    return lambda scores, prefix: function(scores, prefix, one.options)


def refuse_dead_ends(dead: Tensor, rows: Tensor, step: int) -> None:
    """Raises InputError if the filters leave a row no token.

    Args:
        dead: (R,) bool, rows without an allowed token.
        rows: (R,) the numbers of the rows.
        step: the number of the token.
    """
    if bool(dead.any()):
        message = f"the score filters forbid every token of row {int(rows[dead][0])} at token {step}"
        raise InputError(Diagnostic("TFK078", message, "leave a filter out, or let it allow the end token"))
