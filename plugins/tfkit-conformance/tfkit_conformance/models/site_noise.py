"""Noise of the size of the contract's error bound at every attention site of a model.

A site's output becomes that of the float64 reference plus T_O g, and on the way back the gradients of query, key, value and
bias become the reference's plus T_dq g, T_dk g, T_dv g, T_dbias g, with the bounds T of `attention.bound` and fresh
Gaussian g. So a whole model is disturbed by what its backends may differ in, and not by how one of them happens to round.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tfkit import Model
from tfkit.inspection import BackendChoice, BoundBackend
from tfkit.plugin import AttentionInputs, AttentionOutput, Numerics
from tfkit.plugin.model_parts import MultiHeadAttention

from ..attention.bound import UNIT, bounds
from ..attention.compare import leaves_of
from ..attention.reference import reference
from .noise import PROBE, Noise

ENLARGED = PROBE / UNIT[torch.float64]


@contextmanager
def disturbed_sites(model: Model, noise: Noise) -> Iterator[None]:
    """Meanwhile every site of a float64 model on the CPU gives the reference's answer, disturbed. A site with a score function
    of its own is left to its backend, whose operations are disturbed one by one."""
    before = {module: dict(module.choices) for module in model.modules() if isinstance(module, MultiHeadAttention)}
    for module, choices in before.items():
        module.choices = {index: _disturbed(choice, noise) for index, choice in choices.items()}
    try:
        yield
    finally:
        for module, choices in before.items():
            module.choices = choices


def _disturbed(choice: BackendChoice, noise: Noise) -> BackendChoice:
    def bound_to(backend: BoundBackend) -> BoundBackend:
        def attend(inputs: AttentionInputs, options: Any) -> AttentionOutput:
            if inputs.score is not None:
                return backend.attend(inputs, options)
            return AttentionOutput(_Site.apply(inputs, noise, *leaves_of(inputs).values()))  # type: ignore[no-untyped-call]

        return BoundBackend(backend.entry, backend.options, attend, None, backend.name)

    made = tuple(bound_to(candidate) for candidate in choice.candidates)
    return BackendChoice(choice.site, choice.requested_backends, made, choice.automatic, choice.others)


class _Site(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: AttentionInputs, noise: Noise, *leaves: Tensor) -> Tensor:
        ctx.inputs, ctx.noise = inputs, noise
        with noise.silence():
            found = reference(inputs)
            return noise.disturbed(found.output, ENLARGED * bounds(found, Numerics()).output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        with ctx.noise.silence():
            found = reference(ctx.inputs, gradients[0])
            limits = bounds(found, Numerics())
            moved = [ctx.noise.disturbed(found.gradients[leaf], ENLARGED * limits.gradients[leaf]) for leaf in found.gradients]
            return (
                None,
                None,
                *(tensor.to(leaf.dtype) for tensor, leaf in zip(moved, leaves_of(ctx.inputs).values(), strict=True)),
            )
