"""Mutants of placements: other wirings behind the same entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfkit.plugin.model_parts import Constants, LayerParts, StackContext
from tfkit_conformance.laws.law import PartUnderTest

from .mutant import Change, declares, law_mutants, made


@dataclass(frozen=True)
class Step:
    """One sub-layer of a layer: the sub-layer f, its norms, and the residual sum."""

    layer: Wire
    name: str
    f: Callable[[Tensor], Tensor]

    @property
    def scale(self) -> float:
        return self.layer.parts.scales[self.name]

    def norm(self, x: Tensor, where: str = "") -> Tensor:
        """The norm of this sub-layer; `where` is "_in" or "_out" for a sandwich. A shared norm serves all sub-layers."""
        norms = dict(self.layer.norms.named_children())
        normed: Tensor = norms.get("shared", norms.get(self.name + where))(x)  # type: ignore[misc]
        return normed

    def dropout(self, branch: Tensor, always: bool = False) -> Tensor:
        return functional.dropout(branch, self.layer.parts.dropout, always or self.layer.training)

    def add(self, x: Tensor, branch: Tensor) -> Tensor:
        """skip x + scale dropout(branch)."""
        return self.layer.parts.skip * x + self.scale * self.dropout(branch)


class Wire(nn.Module):
    """A layer whose wiring is one function: `rule(x, steps)`."""

    def __init__(self, parts: LayerParts, rule: Rule, index: int | None = None) -> None:
        super().__init__()
        self.branches, self.norms = nn.ModuleDict(parts.branches), nn.ModuleDict(parts.norms)
        self.parts, self.rule, self.index = parts, rule, index

    def forward(self, x: Tensor, run: StackContext, index: int) -> Tensor:
        given = index if self.index is None else self.index
        steps = [Step(self, name, lambda y, f=branch: f(y, run, given)) for name, branch in self.branches.items()]  # type: ignore[misc]
        return self.rule(x, steps)


Rule = Callable[[Tensor, list[Step]], Tensor]


def _as(rule: Rule) -> Change:
    return made(lambda options, parts: Wire(parts, rule))


def _each(step: Callable[[Step, Tensor], Tensor], index: int | None = None, backwards: bool = False) -> Change:
    """Sub-layers one after the other: x = step(sub-layer, x). `index` replaces the index of the layer."""

    def rule(x: Tensor, steps: list[Step]) -> Tensor:
        for at in reversed(steps) if backwards else steps:
            x = step(at, x)
        return x

    return made(lambda options, parts: Wire(parts, rule, index))


def _pre(at: Step, x: Tensor) -> Tensor:
    return at.add(x, at.f(at.norm(x)))


def _last_unnormed(at: Step, x: Tensor) -> Tensor:
    return at.add(x, at.f(x)) if at.name == list(at.layer.branches)[-1] else _pre(at, x)


def _first_norm(at: Step, x: Tensor) -> Tensor:
    return at.add(x, at.f(next(iter(at.layer.norms.values()))(x)))


def _residual_per_branch(x: Tensor, steps: list[Step]) -> Tensor:
    return torch.stack([_pre(at, x) for at in steps]).sum(0)


def _writes(x: Tensor, steps: list[Step]) -> Tensor:
    y = x.detach()
    for at in steps:
        y.add_(at.scale * at.f(at.norm(y.clone())).detach())
    return x * 1.0


def _twice(at: Step, x: Tensor) -> Tensor:
    at.f(at.norm(x))
    return _pre(at, x)


def _unscaled_dropout(at: Step, x: Tensor) -> Tensor:
    given = at.f(at.norm(x))
    kept = torch.rand_like(given) >= at.layer.parts.dropout if at.layer.training else torch.ones_like(given)
    return at.layer.parts.skip * x + at.scale * given * kept


def _changed_constants(change: Callable[[Callable[[Any, Any], Constants], Any, Any], Constants]) -> Change:
    """The entry's constants are `change(own, options, context)`."""

    def changed(subject: PartUnderTest) -> PartUnderTest:
        return replace(subject, entry=replace(subject.entry, constants=partial(change, subject.entry.constants)))

    return changed


def _exchanged_roles(own: Callable[[Any, Any], Constants], options: Any, context: Any) -> Constants:
    other = {"encoder": "decoder", "decoder": "encoder"}
    return own(options, replace(context, role=other.get(context.role, context.role)))


def _more_gains(own: Callable[[Any, Any], Constants], options: Any, context: Any) -> Constants:
    found = own(options, context)
    return replace(found, gains={**found.gains, "query": found.gains["value"]})


MUTANTS = law_mutants(
    "placement",
    post=[
        ("post_norm_first", "the norm stands before the sum", _each(lambda at, x: at.add(x, at.norm(at.f(x))))),
        ("post_as_pre", "wired as pre", _each(_pre)),
        ("post_no_residual", "there is no residual", _each(lambda at, x: at.norm(at.scale * at.dropout(at.f(x))))),
    ],
    pre=[
        ("pre_residual_normed", "the residual is normed too", _each(lambda at, x: at.add(at.norm(x), at.f(at.norm(x))))),
        ("pre_last_unnormed", "the last norm is left out", _each(_last_unnormed)),
        ("pre_first_norm", "all sub-layers use the first norm", _each(_first_norm)),
        ("pre_reversed", "sub-layers come in the opposite order", _each(_pre, backwards=True)),
        ("pre_index", "sub-layers get the index of layer 0", _each(_pre, index=0)),
        ("pre_twice", "every sub-layer is called twice", _each(_twice)),
        (
            "pre_mixes",
            "sub-layers' outputs are summed over the tokens before",
            _each(lambda at, x: at.add(x, at.f(at.norm(x)).cumsum(1))),
        ),
        ("pre_writes", "sums are made in place", _as(_writes)),
        (
            "pre_scale_twice",
            "the scale of a sub-layer is applied twice",
            _each(lambda at, x: at.add(x, at.scale * at.f(at.norm(x)))),
        ),
        (
            "pre_scale_ignored",
            "the scale of a sub-layer is ignored",
            _each(lambda at, x: x + at.dropout(at.f(at.norm(x)))),
        ),
        (
            "pre_scale_residual",
            "the scale multiplies the residual too",
            _each(lambda at, x: at.scale * (x + at.dropout(at.f(at.norm(x))))),
        ),
        (
            "pre_dropout_eval",
            "dropout acts in evaluation too",
            _each(lambda at, x: x + at.scale * at.dropout(at.f(at.norm(x)), always=True)),
        ),
        (
            "pre_dropout_residual",
            "dropout acts on the sum",
            _each(lambda at, x: at.dropout(x + at.scale * at.f(at.norm(x)))),
        ),
        ("pre_dropout_never", "dropout never acts", _each(lambda at, x: x + at.scale * at.f(at.norm(x)))),
        ("pre_dropout_unscaled", "what dropout leaves is not scaled up", _each(_unscaled_dropout)),
        ("pre_final_norm", "its entry says that a stack needs no final norm", declares(final_norm=lambda options: False)),
        (
            "pre_norm_sites",
            "its entry declares a norm that it does not use",
            declares(norm_sites=lambda options, sublayers: (*sublayers, "extra")),
        ),
    ],
    sandwich=[
        (
            "sandwich_no_out",
            "the norm after the sub-layer is left out",
            _each(lambda at, x: at.add(x, at.f(at.norm(x, "_in")))),
        ),
        (
            "sandwich_turned",
            "the two norms of a sub-layer are exchanged",
            _each(lambda at, x: at.add(x, at.norm(at.f(at.norm(x, "_out")), "_in"))),
        ),
        (
            "sandwich_out_residual",
            "the second norm stands after the sum",
            _each(lambda at, x: at.norm(at.add(x, at.f(at.norm(x, "_in"))), "_out")),
        ),
    ],
    residual_post=[
        ("residual_post_pre", "the norm stands before the sub-layer", _each(_pre)),
        ("residual_post_sum", "the norm stands after the sum", _each(lambda at, x: at.norm(at.add(x, at.f(x))))),
    ],
    parallel=[
        ("parallel_sequential", "each sub-layer reads the output of the one before", _each(_pre)),
        ("parallel_residuals", "the residual is added once per sub-layer", _as(_residual_per_branch)),
    ],
    deepnorm=[
        ("deepnorm_skip_ignored", "alpha is ignored", _each(lambda at, x: at.norm(x + at.scale * at.dropout(at.f(x))))),
        (
            "deepnorm_skip_branch",
            "alpha multiplies the sub-layer",
            _each(lambda at, x: at.norm(x + at.layer.parts.skip * at.scale * at.dropout(at.f(x)))),
        ),
        ("deepnorm_roles", "the constants of encoder and decoder are exchanged", _changed_constants(_exchanged_roles)),
        ("deepnorm_gains", "beta multiplies the query weights too", _changed_constants(_more_gains)),
    ],
    none=[("none_no_residual", "there is no residual", _each(lambda at, x: at.scale * at.dropout(at.f(x))))],
)
