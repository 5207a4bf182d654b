"""The errors of one call of a backend against the float64 reference, as shares of their bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tfkit.inspection import BIAS_NAMES, features_of
from tfkit.plugin import AttentionInputs, AttentionOutput, AttentionRequest, LinearBias, Numerics

from ..finding import Inconclusive
from .bound import Bounds, bounds, worst_ratio
from .reference import Reference, reference

Attend = Callable[[AttentionInputs, Any], AttentionOutput]


def request_of(inputs: AttentionInputs, gradients: bool | None = None) -> AttentionRequest:
    """What a call requests from a backend, for `check_request`. `gradients` overrides the `requires_grad` of its tensors."""
    query, value, bias = inputs.query, inputs.value, inputs.bias
    wanted = [name for name, leaf in leaves_of(inputs).items() if gradients or (gradients is None and leaf.requires_grad)]
    features: dict[str, Any] = dict.fromkeys(features_of(inputs), True)
    return AttentionRequest(
        device=query.device.type,
        cuda_capability=torch.cuda.get_device_capability(query.device) if query.is_cuda else None,
        dtype=str(query.dtype).removeprefix("torch."),
        head_dim=query.shape[3],
        value_dim=value.shape[3],
        queries=query.shape[2],
        keys=value.shape[2],
        mask_terms=inputs.mask.terms(),
        bias=None if bias is None else BIAS_NAMES[type(bias)],
        bias_gradient="bias" in wanted,
        gradients=bool(wanted),
        **features,
    )


def leaves_of(inputs: AttentionInputs) -> dict[str, Tensor]:
    """The tensors of a call that can carry a gradient, by name: query, key, value and, where there is one, bias."""
    leaves = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
    if inputs.bias is not None:
        leaves["bias"] = inputs.bias.slopes if isinstance(inputs.bias, LinearBias) else inputs.bias.values
    return leaves


def gradients_of(output: Tensor, inputs: AttentionInputs, grad_output: Tensor, retain_graph: bool = False) -> dict[str, Tensor]:
    """The gradient of every leaf that requires one, by `backward` as in training: a reentrant checkpoint allows nothing else.
    Raises RuntimeError where the output does not depend on a leaf."""
    leaves = {name: leaf for name, leaf in leaves_of(inputs).items() if leaf.requires_grad}
    if not leaves:
        return {}
    if not all(leaf.is_leaf for leaf in leaves.values()):
        computed = torch.autograd.grad(output, list(leaves.values()), grad_output, retain_graph=retain_graph)
        return dict(zip(leaves, computed, strict=True))
    for leaf in leaves.values():
        leaf.grad = None
    torch.autograd.backward(output, grad_output, retain_graph=retain_graph)
    gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    for leaf in leaves.values():
        leaf.grad = None
    if missing := leaves.keys() - gradients.keys():
        raise RuntimeError(f"no gradient reaches {', '.join(sorted(missing))}")
    return gradients


def compared(
    answer: AttentionOutput, gradients: dict[str, Tensor], wanted: Reference, bound: Bounds
) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """Each result of a call by name, with the reference's and its bound: output; weights and lse if given; each gradient."""
    for name in ("output", "weights", "lse"):
        tensor = getattr(answer, name)
        if tensor is not None:
            yield name, tensor, getattr(wanted, name), getattr(bound, name)
    for name, gradient in gradients.items():
        yield f"gradient of {name}", gradient, wanted.gradients[name], bound.gradients[name]


def error_ratios(
    attend: Attend,
    options: Any,
    numerics: Numerics,
    inputs: AttentionInputs,
    grad_output: Tensor,
    drawn: Tensor | None = None,
) -> dict[str, float]:
    """The errors of one call of a backend, as shares of their bounds: above 1 is wrong.

    Args:
        attend: the backend's function.
        options: its options.
        numerics: its numerics class.
        inputs: the call.
        grad_output: the gradient (B,H,Q,V) of the output.
        drawn: the factors (B,H,Q,K) of a dropout draw; ones by default.

    Returns:
        The largest ratio by tensor: output, weights and lse where they are given, and each gradient.

    Raises:
        Inconclusive: the scores of a row are too large for its dtype.
    """
    answer = attend(inputs, options)
    wanted = reference(inputs, grad_output, drawn)
    bound = bounds(wanted, numerics, tf32=inputs.query.is_cuda and torch.backends.cuda.matmul.allow_tf32)
    if not bool(bound.evaluated.all()):
        raise Inconclusive("the scores are too large for this dtype")
    results = compared(answer, gradients_of(answer.output, inputs, grad_output), wanted, bound)
    return {name.removeprefix("gradient of "): worst_ratio(got, want, limit) for name, got, want, limit in results}
