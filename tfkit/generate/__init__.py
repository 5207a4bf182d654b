"""Generating sequences from a built model."""

from .beam import beam_search
from .greedy import Generated, greedy
from .hypothesis import Hypothesis
from .penalty import GnmtLengthPenalty, PowerLengthPenalty

__all__ = ["Generated", "GnmtLengthPenalty", "Hypothesis", "PowerLengthPenalty", "beam_search", "greedy"]
