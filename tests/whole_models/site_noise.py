"""Noise of the size of the contract's error bound at every attention site of a model.

A site's output becomes that of the float64 reference plus T_O g, and on the way back the gradients of query, key, value and
bias become the reference's plus T_dq g, T_dk g, T_dv g, T_dbias g, with the bounds T of `attention.bound` and fresh
Gaussian g. So a whole model is disturbed by what its backends may differ in, and not by how one of them happens to round.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tfkit import Model
from tfkit.inspection import BoundBackend
from tfkit.plugin import AttentionInputs, AttentionOutput, Numerics
from tfkit_conformance.attention.bound import UNIT, bounds
from tfkit_conformance.attention.compare import leaves_of
from tfkit_conformance.attention.reference import reference
from tfkit_conformance.site_hooks import replaced_backends

from .noise import PROBE, Noise

ENLARGED = PROBE / UNIT[torch.float64]


def disturbed_sites(model: Model, noise: Noise) -> AbstractContextManager[None]:
    """Until the block ends, every site of a float64 model on the CPU gives the result of the reference plus noise. A site with
    another score function keeps its backend, whose operations are disturbed one by one."""

    def disturbed(site: str, backend: BoundBackend) -> BoundBackend:
        def attend(inputs: AttentionInputs, options: Any) -> AttentionOutput:
            if inputs.score is not None:
                return backend.attend(inputs, options)
            return AttentionOutput(_Site.apply(inputs, noise, *leaves_of(inputs).values()))  # type: ignore[no-untyped-call]

        return replace(backend, attend=attend, prepare=None)

    return replaced_backends(model, disturbed)


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
