"""Records the backward pass at every attention site of a model, and adds given errors at its sites."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tfkit import Model
from tfkit.inspection import BoundBackend, Stack
from tfkit.plugin import AttentionInputs, AttentionOutput, DenseBias, DistanceBias, LinearBias, shapes_of

from ..attention.compare import gradients_of, leaves_of
from ..site_hooks import replaced_backends
from .batch import Batch
from .expected import node_of
from .recording import as_recorded
from .sites import prepared, with_leaves

Gradients = dict[str, Tensor]
SiteRuns = dict[str, list["SiteRun"]]
"""The calls of every site: one, or one for each step of a loop."""


@dataclass
class SiteRun:
    """One call of a site: its backend, what it was given and gave, the gradient that reached it and those that it passed on."""

    backend: BoundBackend
    inputs: AttentionInputs
    output: Tensor
    grad_output: Tensor | None = None
    gradients: Gradients = field(default_factory=dict)


@dataclass(frozen=True)
class SiteError:
    """What a site was off by, in float64: its output, and the gradient of each tensor that it reads."""

    output: Tensor
    gradients: Gradients


@dataclass(frozen=True)
class Backward:
    """A forward and a backward pass: outputs, as a recording has them, gradients of the parameters, and the calls of sites."""

    outputs: Gradients
    gradients: Gradients
    runs: SiteRuns


def backward(model: Model, batch: Batch, towards: Gradients) -> Backward:
    """The gradient of every trainable parameter for gradients `towards` of the outputs, and what happened at every site."""
    runs: SiteRuns = {}
    once = _called_once(model)

    def recorded(site: str, backend: BoundBackend) -> BoundBackend:
        def attend(inputs: AttentionInputs, options: Any) -> AttentionOutput:
            gradients: Gradients = {}
            answer = backend.attend(_split(inputs, backend, gradients), options)
            run = SiteRun(backend, inputs, answer.output.detach(), gradients=gradients)
            if site not in runs or site not in once:  # an activation checkpoint calls it again, and drops that result
                runs.setdefault(site, []).append(run)
            if answer.output.requires_grad:
                answer.output.register_hook(lambda gradient: setattr(run, "grad_output", gradient.detach()))  # type: ignore[no-untyped-call]
            return answer

        return replace(backend, attend=attend)

    with replaced_backends(model, recorded):
        return Backward(*_gradients(model, batch, towards), runs)


def with_site_errors(model: Model, batch: Batch, towards: Gradients, errors: dict[str, list[SiteError | None]]) -> Gradients:
    """The gradients of a float64 model in which every site is off by what is given, forward and backward."""

    calls, once = Counter[str](), _called_once(model)

    def with_error(site: str, backend: BoundBackend) -> BoundBackend:
        def attend(inputs: AttentionInputs, options: Any) -> AttentionOutput:
            answer = backend.attend(inputs, options)
            error = errors[site][0 if site in once else calls[site]] if site in errors else None
            calls[site] += 1
            if error is None:
                return answer
            leaves = leaves_of(inputs)
            added = [error.gradients.get(name) if leaf.requires_grad else None for name, leaf in leaves.items()]
            return AttentionOutput(_Off.apply(answer.output, error.output, added, *leaves.values()))  # type: ignore[no-untyped-call]

        return replace(backend, attend=attend)

    with replaced_backends(model, with_error):
        return _gradients(model, batch, towards)[1]


def _called_once(model: Model) -> frozenset[str]:
    """The sites of stacks, which call them once. Other nodes may call theirs in a loop."""
    return frozenset(use.site for use in model.attention_sites() if isinstance(model.nodes[use.site.split(".")[0]], Stack))


class _Off(torch.autograd.Function):
    """x + e forward; backward, constants added to the gradients of further tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, error: Tensor, added: list[Tensor | None], *leaves: Tensor) -> Tensor:
        ctx.added = [None if gradient is None else gradient.to(x) for gradient in added]
        return x + error.to(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return gradients[0], None, None, *ctx.added


def _split(inputs: AttentionInputs, backend: BoundBackend, into: Gradients) -> AttentionInputs:
    """The same call on views of its tensors, whose gradients are those of this call alone."""

    def viewed(name: str, tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        view = tensor.view_as(tensor)
        view.register_hook(lambda gradient: into.__setitem__(name, gradient.detach().clone()))  # type: ignore[no-untyped-call]
        return view

    bias, prepared_mask = inputs.bias, inputs.prepared
    if isinstance(bias, (DenseBias, DistanceBias)) and bias.values.requires_grad:
        bias = replace(bias, values=viewed("bias", bias.values))
        if prepared_mask is not None and backend.prepare is not None:  # of the bias of all layers, past the view
            prepared_mask = backend.prepare(inputs.mask, bias, shapes_of(inputs), backend.options)
    query, key, value = viewed("query", inputs.query), viewed("key", inputs.key), viewed("value", inputs.value)
    return replace(inputs, query=query, key=key, value=value, bias=bias, prepared=prepared_mask)


def _gradients(model: Model, batch: Batch, towards: Gradients) -> tuple[Gradients, Gradients]:
    """The outputs, and the gradient of every parameter, also of one that has two names."""
    parameters = {name: p for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    outputs = dict(model(**batch.call(dtype=model.dtype)))
    ends = {name: tensor for name, tensor in outputs.items() if name in towards and tensor.requires_grad}
    toward = [_as_returned(name, towards[name]).to(tensor) for name, tensor in ends.items()]
    reached: Any = [None] * len(parameters)
    if parameters and ends:
        reached = torch.autograd.grad(list(ends.values()), list(parameters.values()), toward, allow_unused=True)
    gradients = {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(parameters.items(), reached, strict=True)
    }
    return as_recorded({name: tensor.detach() for name, tensor in outputs.items()}), gradients


def _as_returned(name: str, tensor: Tensor) -> Tensor:
    """The layers of a stack have their axis first in the output of a model, and third in a recording."""
    return tensor if name == node_of(name) else tensor.movedim(2, 0)


def site_errors(runs: SiteRuns, wide: Model) -> dict[str, list[SiteError | None]]:
    """The error of every call of a site against the float64 model's own backend on the same inputs.

    None for a score function other than the dot product, and for a call that no gradient reached.
    """
    exact = {choice.site: choice.candidates[0] for choice in (a.choices[i] for a, i, _ in wide.attention_sites())}
    return {site: [_error(run, exact[site]) for run in calls] for site, calls in runs.items()}


def _error(run: SiteRun, exact: BoundBackend) -> SiteError | None:
    if run.inputs.score is not None or run.grad_output is None:
        return None
    inputs = _wide_call(run.inputs)
    wanted = exact.attend(prepared(exact, inputs), exact.options).output
    gradients = gradients_of(wanted, inputs, run.grad_output.double())
    off = {name: gradient.double() - gradients[name] for name, gradient in run.gradients.items()}
    return SiteError(run.output.double() - wanted.detach(), off)


def _wide_call(inputs: AttentionInputs) -> AttentionInputs:
    """The same call in float64, on copies of its tensors that a gradient can be asked for."""
    leaf_inputs = with_leaves(inputs, False)
    bias: Any = leaf_inputs.bias
    if isinstance(bias, LinearBias):
        bias = LinearBias(bias.slopes.double())
    elif bias is not None:
        bias = replace(bias, values=bias.values.double().requires_grad_())
    query, key, value = (tensor.double().requires_grad_() for tensor in (leaf_inputs.query, leaf_inputs.key, leaf_inputs.value))
    return replace(leaf_inputs, query=query, key=key, value=value, bias=bias)
