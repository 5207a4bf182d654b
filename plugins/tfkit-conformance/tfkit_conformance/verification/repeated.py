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


def training_without_dropout(subject: ModelUnderTest) -> None:
    """R40."""
    quiet = _quiet(subject.model).train()
    trained = run(quiet, subject.batch)
    for name, tensor in subject.baseline.items():
        same(
            "dropout", trained[name], tensor, "with dropout 0, training mode must give what evaluation mode gives", f"`{name}`"
        )


def dropout_acts(subject: ModelUnderTest) -> None:
    """In training mode the dropout of the spec changes what follows it."""
    if not _asked(subject):
        raise NotApplicable("the spec has no dropout")
    training: Model = copied(subject.model).train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(subject.seed)
        one = run(training, subject.batch)
        two = run(training, subject.batch)
    name = subject.model.plan.outputs[-1]
    if torch.equal(one[name], two[name]):
        raise Violation("dropout", f"the spec has dropout, but two training calls give the same `{name}`")


def against_exact(subject: ModelUnderTest, exact: dict[str, Tensor]) -> float:
    """The distance to a float64 run of the same weights, over its tolerance."""
    return agree(
        "float64", subject.baseline, exact, subject.stick, "against a float64 run of the same weights", subject.shown()
    )


def _quiet(model: Model) -> Model:
    made: Model = copied(model)
    for module in made.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, MultiHeadAttention):
            module.config = replace(module.config, dropout=0.0)
    return made


def _asked(subject: ModelUnderTest) -> bool:
    for node in subject.graph.nodes.values():
        if getattr(node.options, "dropout", 0.0) > 0.0:
            return True
        for _, layer in sequence(layers_of(node.options)):
            if layer.dropout > 0.0 or any(getattr(part.options, "dropout", 0.0) > 0.0 for part in layer.sublayers or ()):
                return True
    return False
