"""The output of a model depends on its inputs alone, and dropout acts in training only.

R1    the same call gives the same bits, for any state of the random generator
R40   with every dropout at 0, training mode gives what evaluation mode gives, to the bit
      with the dropout that the spec asks for, training mode gives different outputs
R2    float64, the same weights widened: the largest error over the largest output, node by node, is at most FACTOR times
      that of the eager backend in the same dtype, measured in the same run (`tfkit_conformance.verification.rounding`)
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from tfkit import Model
from tfkit.inspection import layers_of, sequence
from tfkit.plugin.model_parts import MultiHeadAttention

from ..finding import Violation
from .comparison import same
from .model_under_test import ModelUnderTest
from .recording import run
from .rounding import agree, copied
from .row import NotApplicable


def deterministic(subject: ModelUnderTest) -> None:
    """R1, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(subject.seed + 99)
        again = run(subject.model, subject.batch)
    for name, tensor in subject.baseline.items():
        same("repeat", again[name], tensor, "the same call in evaluation mode must give the same bits", f"`{name}`")


def against_exact(subject: ModelUnderTest, exact: dict[str, Tensor]) -> float:
    """The distance to a float64 run of the same weights, over its tolerance."""
    return agree(
        "float64", subject.baseline, exact, subject.stick, "against a float64 run of the same weights", subject.shown()
    )
