"""The tolerance for gradients of a model beyond the errors of its attention sites, measured under eager.

See `tfkit_conformance.verification.gradients`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tfkit import Graph, Model

from ..attention.bound import UNIT
from ..differences import double
from .batch import Batch
from .expected import expected_sites
from .rounding import FACTOR
from .site_runs import Gradients, backward, site_errors, with_site_errors


@dataclass(frozen=True)
class GradientYardstick:
    """By parameter: the `exact` gradient; under eager in a dtype what is `left` of its error beside what the sites were off by,
    and the length of its error as a `share` of the gradient's. `zero` are those whose gradient is 0, or cannot be distinguished
    from it. `towards` are the gradients of the outputs, `wide` the float64 model."""

    wide: Model
    towards: Gradients
    exact: Gradients
    left: dict[str, float]
    share: dict[str, float]
    zero: frozenset[str]
    dtype: torch.dtype

    def tolerance(self, name: str, size: float) -> float:
        """The most that may be left of the error of a gradient whose largest number is `size`, absolutely."""
        return FACTOR * max(self.left[name], 4.0 * UNIT[self.dtype] * size)

    def at(self, dtype: torch.dtype) -> GradientYardstick:
        """The same for another dtype, by the ratio of the unit roundoffs."""
        ratio = UNIT[dtype] / UNIT[self.dtype]
        left, share = ({name: each * ratio for name, each in table.items()} for table in (self.left, self.share))
        return replace(self, left=left, share=share, dtype=dtype)


def gradient_yardstick(graph: Graph, single: Model, wide: Model, batch: Batch, towards: Gradients) -> GradientYardstick:
    """Measured on a model under eager in some dtype, and the same in float64."""
    dtype = next(single.parameters()).dtype
    exact, _ = backward(wide, batch, towards)
    given, runs = backward(single, batch, towards)
    explained = with_site_errors(wide, batch, towards, site_errors(runs, wide))
    left = {name: _furthest(given[name], explained[name]) for name in exact}
    share = {name: share_of(given[name], exact[name]) for name in exact}
    ratio = FACTOR * UNIT[torch.float64] / UNIT[dtype]
    zero = frozenset(name for name in exact if largest(exact[name]) <= ratio * _furthest(given[name], exact[name]))
    return GradientYardstick(wide, towards, exact, left, share, zero | unseen_biases(wide, graph), dtype)


def unseen_biases(model: Model, graph: Graph) -> frozenset[str]:
    """The key biases that a softmax does not see, by parameter name: they add one number to all scores of a query."""
    found = set()
    table = {site: attention for attention, _, site in model.attention_sites()}
    names = {id(p): name for name, p in model.named_parameters()}
    for expected in expected_sites(graph).values():
        rotated = expected.scheme is not None and "queries_keys" in expected.scheme.entry.acts
        bias = table[expected.name].key.bias
        plain = (
            expected.options.query_key_norm.kind == "none" and expected.site.softcap is None and expected.site.score == "dot"
        )
        if bias is not None and plain and not rotated and not expected.options.sink:
            found.add(names[id(bias)])
    return frozenset(found)


def largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _furthest(given: Tensor, want: Tensor) -> float:
    furthest = float((double(given) - double(want)).abs().max()) if given.numel() else 0.0
    return math.inf if math.isnan(furthest) else furthest


def share_of(given: Tensor, exact: Tensor) -> float:
    """The length of the error over that of the exact gradient; 0 where both are."""
    error, length = float((double(given) - double(exact)).norm()), float(double(exact).norm())
    if math.isnan(error):
        return math.inf
    return error / length if length else (math.inf if error else 0.0)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
