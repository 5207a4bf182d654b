"""Mutants of placements: other wirings behind the same entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfkit.nn.layer import LayerParts
from tfkit.nn.runtime.context import StackContext
from tfkit.slots.placement import Constants
from tfkit_conformance.laws.part import PartUnderTest

from .mutant import Change, declares, law_mutants, made


class Wire(nn.Module):
    """A layer whose wiring is one function: `rule(self, x, run, index)`."""

    def __init__(self, parts: LayerParts, rule: Rule) -> None:
        super().__init__()
        self.branches, self.norms = nn.ModuleDict(parts.branches), nn.ModuleDict(parts.norms)
        self.parts, self.rule = parts, rule

    def forward(self, x: Tensor, run: StackContext, index: int) -> Tensor:
        return self.rule(self, x, run, index)

    def add(self, name: str, x: Tensor, branch: Tensor) -> Tensor:
        """skip x + scale dropout(branch)."""
        return self.parts.skip * x + self.parts.scales[name] * functional.dropout(branch, self.parts.dropout, self.training)


Rule = Callable[[Wire, Tensor, StackContext, int], Tensor]


def _as(rule: Rule) -> Change:
    return made(lambda options, parts: Wire(parts, rule))


def _each(step: Callable[[Wire, str, Tensor, Callable[[Tensor], Tensor]], Tensor]) -> Change:
    """Sub-layers one after the other: x = step(layer, name, x, branch)."""

    def rule(layer: Wire, x: Tensor, run: StackContext, index: int) -> Tensor:
        for name, branch in layer.branches.items():
            x = step(layer, name, x, lambda y, branch=branch: branch(y, run, index))  # type: ignore[misc]
        return x

    return _as(rule)


def _pre_last_unnormed(layer: Wire, x: Tensor, run: StackContext, index: int) -> Tensor:
    names = list(layer.branches)
    for name in names:
        inner = x if name == names[-1] else layer.norms[name](x)
        x = layer.add(name, x, layer.branches[name](inner, run, index))
    return x


def _pre_reversed(layer: Wire, x: Tensor, run: StackContext, index: int) -> Tensor:
    for name in reversed(list(layer.branches)):
        x = layer.add(name, x, layer.branches[name](layer.norms[name](x), run, index))
    return x


def _pre_other_index(layer: Wire, x: Tensor, run: StackContext, index: int) -> Tensor:
    for name, branch in layer.branches.items():
        x = layer.add(name, x, branch(layer.norms[name](x), run, 0))
    return x


def _pre_first_norm(layer: Wire, x: Tensor, run: StackContext, index: int) -> Tensor:
    first = next(iter(layer.norms.values()))
    for name, branch in layer.branches.items():
        x = layer.add(name, x, branch(first(x), run, index))
    return x


def _sequential(layer: Wire, x: Tensor, run: StackContext, index: int) -> Tensor:
    for name, branch in layer.branches.items():
        norm = layer.norms["shared"] if "shared" in layer.norms else layer.norms[name]
        x = layer.add(name, x, branch(norm(x), run, index))
    return x


def _residual_per_branch(layer: Wire, x: Tensor, run: StackContext, index: int) -> Tensor:
    total = torch.zeros_like(x)
    for name, branch in layer.branches.items():
        norm = layer.norms["shared"] if "shared" in layer.norms else layer.norms[name]
        total = total + layer.add(name, x, branch(norm(x), run, index))
    return total


def _writes(layer: Wire, x: Tensor, run: StackContext, index: int) -> Tensor:
    y = x.detach()
    for name, branch in layer.branches.items():
        y.add_(layer.parts.scales[name] * branch(layer.norms[name](y.clone()), run, index).detach())
    return x * 1.0


def _mixes(layer: Wire, name: str, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
    return layer.add(name, x, branch(layer.norms[name](x)).cumsum(1))


def _twice(layer: Wire, name: str, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
    branch(layer.norms[name](x))
    return layer.add(name, x, branch(layer.norms[name](x)))


def _dropout(layer: Wire, branch: Tensor, training: bool) -> Tensor:
    return functional.dropout(branch, layer.parts.dropout, training)


def _unscaled_dropout(layer: Wire, name: str, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
    given, share = branch(layer.norms[name](x)), layer.parts.dropout
    kept = torch.rand_like(given) >= share if layer.training else torch.ones_like(given)
    return layer.parts.skip * x + layer.parts.scales[name] * given * kept


def _turned_constants(subject: PartUnderTest) -> PartUnderTest:
    own = subject.entry.constants
    other = {"encoder": "decoder", "decoder": "encoder"}

    def constants(options: Any, context: Any) -> Constants:
        return own(options, replace(context, role=other.get(context.role, context.role)))  # type: ignore[no-any-return]

    return replace(subject, entry=replace(subject.entry, constants=constants))


def _more_gains(subject: PartUnderTest) -> PartUnderTest:
    own = subject.entry.constants

    def constants(options: Any, context: Any) -> Constants:
        found = own(options, context)
        return replace(found, gains={**found.gains, "query": found.gains["value"]})  # type: ignore[no-any-return]

    return replace(subject, entry=replace(subject.entry, constants=constants))


def _scale(layer: Wire, name: str) -> float:
    return layer.parts.scales[name]


MUTANTS = law_mutants(
    "placement",
    post=[
        (
            "post_norm_first",
            "the norm stands before the sum",
            _each(lambda layer, name, x, branch: layer.add(name, x, layer.norms[name](branch(x)))),
        ),
        ("post_as_pre", "wired as pre", _each(lambda layer, name, x, branch: layer.add(name, x, branch(layer.norms[name](x))))),
        (
            "post_no_residual",
            "there is no residual",
            _each(
                lambda layer, name, x, branch: layer.norms[name](
                    _scale(layer, name) * _dropout(layer, branch(x), layer.training)
                )
            ),
        ),
    ],
    pre=[
        (
            "pre_residual_normed",
            "the residual is normed too",
            _each(lambda layer, name, x, branch: layer.add(name, layer.norms[name](x), branch(layer.norms[name](x)))),
        ),
        ("pre_last_unnormed", "the last norm is left out", _as(_pre_last_unnormed)),
        ("pre_first_norm", "all sub-layers use the first norm", _as(_pre_first_norm)),
        ("pre_reversed", "sub-layers come in the opposite order", _as(_pre_reversed)),
        ("pre_index", "sub-layers get the index of layer 0", _as(_pre_other_index)),
        ("pre_twice", "every sub-layer is called twice", _each(_twice)),
        ("pre_mixes", "sub-layers' outputs are summed over the tokens before", _each(_mixes)),
        ("pre_writes", "sums are made in place", _as(_writes)),
        (
            "pre_scale_twice",
            "the scale of a sub-layer is applied twice",
            _each(lambda layer, name, x, branch: layer.add(name, x, _scale(layer, name) * branch(layer.norms[name](x)))),
        ),
        (
            "pre_scale_ignored",
            "the scale of a sub-layer is ignored",
            _each(lambda layer, name, x, branch: x + _dropout(layer, branch(layer.norms[name](x)), layer.training)),
        ),
        (
            "pre_scale_residual",
            "the scale multiplies the residual too",
            _each(
                lambda layer, name, x, branch: (
                    _scale(layer, name) * (x + _dropout(layer, branch(layer.norms[name](x)), layer.training))
                )
            ),
        ),
        (
            "pre_dropout_eval",
            "dropout acts in evaluation too",
            _each(lambda layer, name, x, branch: x + _scale(layer, name) * _dropout(layer, branch(layer.norms[name](x)), True)),
        ),
        (
            "pre_dropout_residual",
            "dropout acts on the sum",
            _each(
                lambda layer, name, x, branch: _dropout(
                    layer, x + _scale(layer, name) * branch(layer.norms[name](x)), layer.training
                )
            ),
        ),
        (
            "pre_dropout_never",
            "dropout never acts",
            _each(lambda layer, name, x, branch: x + _scale(layer, name) * branch(layer.norms[name](x))),
        ),
        ("pre_dropout_unscaled", "what dropout leaves is not scaled up", _each(_unscaled_dropout)),
        ("pre_final_norm", "its entry says that a stack needs no final norm", declares(final_norm=lambda options: False)),
        (
            "pre_norm_sites",
            "its entry declares a norm that it does not use",
            lambda subject: replace(
                subject, entry=replace(subject.entry, norm_sites=lambda options, sublayers: (*sublayers, "extra"))
            ),
        ),
    ],
    sandwich=[
        (
            "sandwich_no_out",
            "the norm after the sub-layer is left out",
            _each(lambda layer, name, x, branch: layer.add(name, x, branch(layer.norms[f"{name}_in"](x)))),
        ),
        (
            "sandwich_turned",
            "the two norms of a sub-layer are exchanged",
            _each(
                lambda layer, name, x, branch: layer.add(
                    name, x, layer.norms[f"{name}_in"](branch(layer.norms[f"{name}_out"](x)))
                )
            ),
        ),
        (
            "sandwich_out_residual",
            "the second norm stands after the sum",
            _each(
                lambda layer, name, x, branch: layer.norms[f"{name}_out"](
                    layer.add(name, x, branch(layer.norms[f"{name}_in"](x)))
                )
            ),
        ),
    ],
    parallel=[
        ("parallel_sequential", "each sub-layer reads the output of the one before", _as(_sequential)),
        ("parallel_residuals", "the residual is added once per sub-layer", _as(_residual_per_branch)),
    ],
    deepnorm=[
        (
            "deepnorm_skip_ignored",
            "alpha is ignored",
            _each(
                lambda layer, name, x, branch: layer.norms[name](
                    x + _scale(layer, name) * _dropout(layer, branch(x), layer.training)
                )
            ),
        ),
        (
            "deepnorm_skip_branch",
            "alpha multiplies the sub-layer",
            _each(
                lambda layer, name, x, branch: layer.norms[name](
                    x + layer.parts.skip * _scale(layer, name) * _dropout(layer, branch(x), layer.training)
                )
            ),
        ),
        ("deepnorm_roles", "the constants of encoder and decoder are exchanged", _turned_constants),
        ("deepnorm_gains", "beta multiplies the query weights too", _more_gains),
    ],
    none=[
        (
            "none_no_residual",
            "there is no residual",
            _each(lambda layer, name, x, branch: _scale(layer, name) * _dropout(layer, branch(x), layer.training)),
        ),
    ],
)
