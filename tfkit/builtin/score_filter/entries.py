"""The entries of the built-in score filters and their options."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ...plugin import Options, ScoreFilter, Size

TokenId = Annotated[int, Field(ge=0)]
TokenIds = Annotated[tuple[TokenId, ...], Field(strict=False, min_length=1, max_length=10_000)]


class IdsOptions(Options):
    """Options of the filters that forbid or allow tokens."""

    ids: Annotated[TokenIds, Field(description="token ids")]


class FirstOptions(IdsOptions):
    """Options of `suppress_first`."""

    after: Annotated[int, Field(ge=0, description="so many new tokens come before")] = 0


class IdOptions(Options):
    """Options of the filters that force a token."""

    id: Annotated[TokenId, Field(description="the token id")]


class SequencesOptions(Options):
    """Options of `bad_words`."""

    sequences: Annotated[
        tuple[TokenIds, ...], Field(strict=False, min_length=1, max_length=10_000, description="lists of token ids")
    ]


class MinTokensOptions(Options):
    """Options of `min_tokens`."""

    tokens: Annotated[Size, Field(description="the least number of new tokens before the end token")]


class NgramOptions(Options):
    """Options of `no_repeat_ngram`."""

    size: Annotated[Size, Field(description="n")]


class PenaltyOptions(Options):
    """Options of `repetition_penalty`."""

    factor: Annotated[float, Field(ge=1e-6, le=1e6, description="above 1 makes repetition rarer, below 1 more frequent")]


def _filter(name: str, summary: str, options: type[Options], reference: str = "") -> ScoreFilter:
    function = f"tfkit.builtin.score_filter.filters:{name}"
    return ScoreFilter(name=name, summary=summary, options=options, reference=reference, function=function)


ENTRIES: list[ScoreFilter] = [
    _filter("suppress", "forbids tokens", IdsOptions),
    _filter("suppress_first", "forbids tokens as the first new token, or `after` others", FirstOptions),
    _filter("allow", "forbids all other tokens; the end token stays allowed", IdsOptions),
    _filter("bad_words", "forbids the last token of each sequence after the others", SequencesOptions),
    _filter("forced_first", "the first new token, with probability 1", IdOptions),
    _filter("forced_last", "the token at the limit of tokens, with probability 1", IdOptions),
    _filter("min_tokens", "forbids the end token until there are this many new tokens", MinTokensOptions),
    _filter(
        "no_repeat_ngram",
        "forbids a token that would repeat n tokens in a row",
        NgramOptions,
        "https://arxiv.org/abs/1705.04304",
    ),
    _filter(
        "repetition_penalty",
        "divides positive scores of tokens that occurred, and multiplies negative ones",
        PenaltyOptions,
        "https://arxiv.org/abs/1909.05858",
    ),
]
