"""Backends whose forward is eager's and whose backward is wrong, or right; `ENTRIES` declares them."""

from __future__ import annotations

from dataclasses import replace

import torch

from tfkit.builtin.attention.eager import attend
from tfkit.plugin import AttentionOutput, hookimpl


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


def right(inputs, options):
    return attend(replace(inputs, prepared=None), options)


def memory_gradient(inputs, options):
    """Where the keys are a memory, the gradient of the query is 1e-3 too large."""
    if inputs.mask.causal or inputs.query.shape[2] == inputs.key.shape[2]:
        return right(inputs, options)
    return right(replace(inputs, query=_Scaled.apply(inputs.query, 1.001)), options)


class _Workspace(torch.autograd.Function):
    """The upstream gradient is joined with a factor that is kept per shape: the last forward's is used by all of them."""

    kept = {}

    @staticmethod
    def forward(ctx, output, value):
        _Workspace.kept[output.shape] = value.detach().mean()
        ctx.own = value.detach().mean()
        return output.view_as(output)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1.0 + ctx.own - _Workspace.kept[gradient.shape]), None


def workspace(inputs, options):
    """Right for one call at a time."""
    return AttentionOutput(_Workspace.apply(right(inputs, options).output, inputs.value))


def hookimpls(eager):
    """A plugin with all of them, each declaring what eager declares."""
    entries = [
        replace(eager, name=f"acme.{name}", attend=f"verification.mutant_backends:{name}", prepare=None, auto=())
        for name in ("right", "memory_gradient", "workspace")
    ]
    return hookimpl(lambda: entries)
