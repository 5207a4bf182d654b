"""Generating sequences from a built model."""

from .batched import generate_batched, generate_stream
from .beam import beam_search
from .decode_loop import Generated
from .greedy import greedy
from .hypotheses import Hypothesis
from .penalty import GnmtLengthPenalty, PowerLengthPenalty
from .sample import sample
from .settings import Search
from .step_graphs import RecordedSteps, StepGraphs, recorded_steps

__all__ = [
    "Generated",
    "GnmtLengthPenalty",
    "Hypothesis",
    "PowerLengthPenalty",
    "RecordedSteps",
    "Search",
    "StepGraphs",
    "beam_search",
    "greedy",
    "recorded_steps",
    "sample",
    "generate_batched",
    "generate_stream",
]
