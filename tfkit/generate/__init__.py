"""Generating sequences from a built model."""

from .batched import generate_batched, generate_stream
from .beam import beam_search
from .decode_loop import Generated
from .greedy import greedy
from .hypotheses import Hypothesis
from .penalty import GnmtLengthPenalty, PowerLengthPenalty
from .sample import sample
from .settings import Search
from .step_graphs import StepGraphs

__all__ = [
    "Generated",
    "GnmtLengthPenalty",
    "Hypothesis",
    "PowerLengthPenalty",
    "Search",
    "StepGraphs",
    "beam_search",
    "greedy",
    "sample",
    "generate_batched",
    "generate_stream",
]
