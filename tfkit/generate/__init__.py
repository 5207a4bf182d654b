"""Generating sequences from a built model."""

from .beam import beam_search
from .greedy import greedy
from .hypothesis import Hypothesis
from .many import search_all, search_stream
from .penalty import GnmtLengthPenalty, PowerLengthPenalty
from .roll import Generated
from .sample import sample
from .search import Search

__all__ = [
    "Generated",
    "GnmtLengthPenalty",
    "Hypothesis",
    "PowerLengthPenalty",
    "Search",
    "beam_search",
    "greedy",
    "sample",
    "search_all",
    "search_stream",
]
