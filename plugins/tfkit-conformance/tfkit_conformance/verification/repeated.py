"""The output of a model depends on its inputs alone, and is that of the plain evaluation in float64.

R1    the same call gives the same bits, for any state of the random generator, and whether its nodes have hooks or not
      float64: every node of the model against the plain evaluation of the same weights (`truth`), within what rounding may do
      (`rounding`): with padding given by masks; by lengths; with more than 64 positions; with many rows
"""

from __future__ import annotations

import torch

from .comparison import same
from .model_under_test import ModelUnderTest
from .recording import as_recorded, run
from .rounding import agree
from .row import NotApplicable
from .truth import Truth

FIRST_CAPACITY = 64
"""The positions for which a cache has room at first, unless a caller asks for more."""


@torch.no_grad()
def deterministic(subject: ModelUnderTest) -> None:
    """R1, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(subject.seed + 99)
        again = run(subject.model, subject.batch)
        plain = subject.model(**subject.batch.call(dtype=subject.model.dtype))
    for name, tensor in subject.baseline.items():
        same("repeat", again[name], tensor, "the same call in evaluation mode must give the same bits", f"`{name}`")
    for name, tensor in as_recorded(plain).items():
        words = "a model without hooks must give the bits that it gives with them"
        same("repeat", tensor, subject.baseline[name], words, f"`{name}`")


def against_exact(subject: ModelUnderTest) -> float:
    """Float64, padding given by masks."""
    return _agrees(subject, subject.measured.truth, "padding given by masks")


def by_lengths(subject: ModelUnderTest) -> float:
    """Float64, padding given by lengths."""
    return _agrees(subject, subject.measured.long, "padding given by lengths", lengths=True)


def long_sequences(subject: ModelUnderTest) -> float:
    """Float64, more than 64 positions."""
    longest = max((ids.shape[1] for ids in subject.measured.long.batch.ids.values()), default=0)
    worst = _agrees(subject, subject.measured.long, f"sequences of up to {longest} positions")
    if longest <= FIRST_CAPACITY:
        raise NotApplicable(f"no input has more than {longest} positions" if longest else "no input is a sequence", worst)
    return worst


def many_rows(subject: ModelUnderTest) -> float:
    """Float64, many rows."""
    return _agrees(subject, subject.measured.many, "a batch of many rows")


def _agrees(subject: ModelUnderTest, truth: Truth, words: str, lengths: bool = False) -> float:
    got = run(subject.model, truth.batch, lengths)
    told = f"{words}, against the plain evaluation in float64"
    return agree("float64", got, truth.outputs, truth.stick, told, subject.shown(truth.batch))
