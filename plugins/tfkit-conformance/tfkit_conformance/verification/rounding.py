"""How far apart two correct evaluations of a whole model may be.

A worst-case bound for a whole model grows exponentially with its depth and says nothing. So rounding is described as what it
is for almost all models, a sum of many small independent errors, and its size is measured: not on the model under test, but
on the plain evaluation of the same weights by `tfkit_conformance.reference`. With y* its float64 result, y_0 its result in
float32, y_1, y_2, ... its results in stochastic arithmetic (`stochastic`), and N the elements of a tensor:

    s = max(sqrt(mean over k and elements of (y_k - y*)^2),  max |y_k - y*| / sqrt(2 ln 2N),  floor)
    tolerance = sqrt(2) s sqrt(2 ln(2N / RARE))                                                 RARE = 1e-12

The largest of N errors of deviation s is above s sqrt(2 ln(2N / RARE)) with a probability of at most RARE (the union bound of
the Gaussian tail exp(-t^2 / 2)); sqrt(2) because both sides that are compared are rounded. The second term is the deviation of
which the largest error seen is the one to be expected, for tensors whose elements err by different amounts. float64 takes s
times u_float64 / u_float32: rounding errors are of first order in u (Higham, Accuracy and Stability of Numerical Algorithms,
2002, section 1.9). A half dtype has stochastic arithmetic of its own: at its roundoff the kink of a ReLU is passed here and
there, and gradients are not of first order. In no place does the result of the model under test enter.

The floor is there because another kernel sums in another order. Let y = p_1 + ... + p_n be summed one product after the
other, which is the worst order in use, with partial sums S_k and |d_k| <= u_s the rounding error of step k, u_s that of the
dtype that sums (float32 for the half dtypes):

    error of y = sum_k d_k S_k,    d_k independent, of mean 0 and variance u_s^2 / 3          (Higham & Mary 2019, section 2)
    p_k of either sign, deviation s:  rms S_k = s sqrt(k),  rms error = u_s s sqrt(sum k / 3) = u_s s n / sqrt(6)
                                      rms y = s sqrt(n),    rms error / rms y = sqrt(n / 6) u_s
    p_k of one sign, size s:          S_k = k s,            rms error / y = sqrt(sum k^2 / 3) u_s / n = sqrt(n) / 3 u_s, less

Over all sums of n_i terms that a tensor is computed from, each followed by three roundings to the dtype of variance u_d^2 / 3,

    floor = rms(y*) sqrt(sum_i (n_i / 6 u_s^2 + u_d^2))

which holds where each sum passes its relative error on unchanged. Where a model magnifies errors, what is measured is larger.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tfkit import Graph, Model
from tfkit.inspection import layers_of, sequence
from tfkit.plugin.model_parts import BatchwiseNorm, MultiHeadAttention

from ..attention.bound import UNIT
from ..site_hooks import request_backend
from .expected import node_of
from .row import close

RARE = 1e-12
LARGEST = 0.25
"""A tolerance above this share of the largest output shows nothing any more."""


@dataclass(frozen=True)
class Sums:
    """The sums that something is computed from: how many, and the terms of all of them."""

    count: float = 0.0
    terms: float = 0.0

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.count + other.count, self.terms + other.terms)

    def times(self, factor: float) -> Sums:
        return Sums(self.count * factor, self.terms * factor)


@dataclass(frozen=True)
class Scale:
    """Of one tensor: the deviation `error` of a correct evaluation, the root mean square and the largest number of the exact
    tensor, its number of `elements`, and the `sums` that it is computed from."""

    error: float
    rms: float
    largest: float
    elements: int
    sums: Sums


@dataclass(frozen=True)
class Yardstick:
    """The scale of every tensor by name, the dtype whose tolerances it gives, and the one that errors were `measured` for."""

    scales: Mapping[str, Scale]
    dtype: torch.dtype
    measured: torch.dtype = torch.float32

    def deviation(self, name: str) -> float:
        """The deviation of rounding errors, absolutely."""
        scale, u_d, u_s = self.scales[name], UNIT[self.dtype], UNIT[torch.promote_types(self.dtype, torch.float32)]
        floor = scale.rms * math.sqrt(scale.sums.terms / 6.0 * u_s**2 + scale.sums.count * u_d**2)
        return max(scale.error * u_d / UNIT[self.measured], floor)

    def tolerance(self, name: str) -> float:
        """The most by which two correct evaluations of a tensor may be apart, absolutely."""
        return math.sqrt(2.0) * self.deviation(name) * reach(self.scales[name].elements)

    def share(self, name: str) -> float:
        """The tolerance as a share of the largest number of the exact tensor."""
        largest = self.scales[name].largest
        return self.tolerance(name) / largest if largest else 0.0

    def blunt(self) -> str:
        """The tensor of which rounding in this dtype alone may change so much that no error could be distinguished from it."""
        return next((name for name in self.scales if self.share(name) > LARGEST), "")

    def at(self, dtype: torch.dtype) -> Yardstick:
        """The same for another dtype."""
        return replace(self, dtype=dtype)


def reach(elements: int) -> float:
    """How many deviations the largest of so many rounding errors may be."""
    return math.sqrt(2.0 * math.log(2.0 * max(elements, 1) / RARE))


def scale_of(exact: Tensor, drawn: list[Tensor], sums: Sums, visible: Tensor | None = None) -> Scale:
    """The scale of a tensor: `exact` is its float64 value, `drawn` are results with rounding; of the positions shown."""
    y = selected(exact, visible)
    errors = [selected(rounded, visible) - y for rounded in drawn]
    if not y.numel():
        return Scale(0.0, 0.0, 0.0, 0, sums)
    rms = math.sqrt(sum(float(error.square().mean()) for error in errors) / len(errors)) if errors else 0.0
    most = max((float(error.abs().max()) for error in errors), default=0.0)
    error = max(rms, most / math.sqrt(2.0 * math.log(2.0 * y.numel())))
    if math.isnan(error):
        error = math.inf
    return Scale(error, float(y.square().mean().sqrt()), float(y.abs().max()), y.numel(), sums)


def selected(tensor: Tensor, visible: Tensor | None) -> Tensor:
    """The elements of a tensor in float64 on the CPU, of the positions (B, L) shown."""
    wide = tensor.detach().to("cpu", torch.float64)
    return wide if visible is None else wide[visible.cpu()]


def sums_of(graph: Graph, model: Model, positions: int) -> dict[str, Sums]:
    """By node, the sums on the way to its output: a weight of n inputs is one of n terms each time that it is applied, an
    attention one over the features of a head and one over at most `positions` keys. A loop applies its weights at every one of
    the positions."""
    node_sums: dict[str, Sums] = {}
    above: dict[str, set[str]] = {}
    for name, node in graph.nodes.items():
        maps = [weight[0].numel() for weight in model.nodes[name].parameters() if weight.dim() > 1]
        numbers = [number for number, _ in sequence(layers_of(node.options))]
        applied = len(numbers) / len(set(numbers)) if numbers else float(positions if node.part.kind == "rnn" else 1)
        attention = [Sums(2, site.head_dim + positions) for _, site in node.sites()]
        owner: Any = model.nodes[node.edges.owner] if node.edges.owner is not None else None
        tables = [] if owner is None else [Sums(1, owner.embedding.weight.shape[1])]
        node_sums[name] = sum([*attention, *tables], Sums(len(maps), sum(maps)).times(applied))
        read = [node_of(ref) for ref in (*node.edges.reads.values(), *node.edges.memories)]
        above[name] = {name}.union(*(above[source] for source in read))
    totals = {name: sum((node_sums[source] for source in nodes), Sums()) for name, nodes in above.items()}
    return totals | {output: totals[node_of(output)] for output in graph.outputs}


def cast(model: Model, dtype: torch.dtype, backend: object = "eager") -> Model:
    """A copy of a model in another dtype, with one backend at all sites."""
    converted = copied(model).to(dtype)
    device = model.device
    request_backend(converted, "eager")  # it serves every dtype, so that no other backend refuses on the way
    converted.retarget(device, dtype)
    if backend != "eager":
        request_backend(converted, backend)
    return converted.eval()


def copied(model: Model) -> Model:
    """A copy of a model that shares what is never changed: its spec, and the backends to choose from."""
    shared = [model.spec, *(c for a, i, _ in model.attention_sites() for c in (a.choices[i].candidates, a.choices[i].others))]
    return copy.deepcopy(model, {id(thing): thing for thing in shared})


def silence(model: Model) -> None:
    """Sets every dropout of a model to 0."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, MultiHeadAttention):
            module.config = replace(module.config, dropout=0.0)


def without_dropout(model: Model) -> Model:
    """A copy of a model with every dropout at 0."""
    silent = copied(model)
    silence(silent)
    return silent


def trained_without_dropout(model: Model) -> Model:
    """A copy of a model in training mode, with every dropout at 0. Norms over the batch keep their running statistics: their
    entries declare that rows depend on each other in training, which no promise about a model holds for."""
    trained = without_dropout(model).train()
    for module in trained.modules():
        if isinstance(module, BatchwiseNorm):
            module.eval()
    return trained


def agree(
    check: str,
    got: dict[str, Tensor],
    want: dict[str, Tensor],
    yardstick: Yardstick,
    words: str,
    masks: dict[str, Tensor] | None = None,
) -> float:
    """The largest difference over its tolerance among the nodes that both have, in the order of the graph. Raises Violation."""
    worst = 0.0
    for name in want:
        if name in got:
            where = None if masks is None else masks.get(name)
            worst = max(worst, close(check, got[name], want[name], yardstick.tolerance(name), words, f"`{name}`", where))
    return worst
