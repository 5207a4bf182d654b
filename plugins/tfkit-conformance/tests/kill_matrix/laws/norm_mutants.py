"""Mutants of norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .mutant import Built, Change, declares, law_mutants, overriding, patched

Rule = Callable[[Any, Tensor, Any], Tensor]


def _as(rule: Rule, wide: bool = True) -> Change:
    """The module computes `rule(module, x, options)`, by default in float32 at least."""

    def forward(built: Built, x: Tensor) -> Tensor:
        inside = x.to(torch.promote_types(x.dtype, torch.float32)) if wide else x
        return rule(built.module, inside, built.options).to(x.dtype)

    return overriding("forward", forward)


def _scaled(module: Any, normed: Tensor) -> Tensor:
    bias = dict(module.named_parameters()).get("bias")
    scaled: Tensor = normed * module.weight.to(normed.dtype)
    return scaled if bias is None else scaled + bias.to(normed.dtype)


def _centred(x: Tensor, dims: Any = -1) -> Tensor:
    return x - x.mean(dims, keepdim=True)


def _layer(variance: Callable[[Tensor, Any], Tensor]) -> Rule:
    """Layer norm whose divisor is `variance(centred, options)`."""
    return lambda module, x, options: _scaled(module, _centred(x) / variance(_centred(x), options))


def _unbiased(centred: Tensor, options: Any) -> Tensor:
    return torch.sqrt(centred.square().sum(-1, keepdim=True) / (centred.shape[-1] - 1) + options.eps)


def _eps_outside(centred: Tensor, options: Any) -> Tensor:
    return torch.add(torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-30), float(options.eps))


def _across_tokens(module: Any, x: Tensor, options: Any) -> Tensor:
    axis = -2 if x.dim() > 1 else -1
    centred = _centred(x, axis)
    return _scaled(module, centred / (centred.square().mean(axis, keepdim=True) + options.eps).sqrt())


def _whole_sentence(module: Any, x: Tensor, options: Any) -> Tensor:
    dims = (-2, -1) if x.dim() > 1 else -1
    centred = _centred(x, dims)
    return _scaled(module, centred / (centred.square().mean(dims, keepdim=True) + options.eps).sqrt())


def _factor(module: Any, options: Any, x: Tensor) -> Tensor:
    weight: Tensor = module.weight.to(x.dtype)
    return weight + 1.0 if options.unit_offset else weight


def _rms(root: Callable[[Tensor, Any], Tensor]) -> Rule:
    """RMS norm whose divisor is `root(x, options)`."""
    return lambda module, x, options: _factor(module, options, x) * x / root(x, options)


def _root(x: Tensor, options: Any) -> Tensor:
    return torch.sqrt(x.square().mean(-1, keepdim=True) + options.eps)


def _twice_rounded(built: Built, x: Tensor) -> Tensor:
    inside = x.to(torch.promote_types(x.dtype, torch.float32))
    return _factor(built.module, built.options, x) * (inside / _root(inside, built.options)).to(x.dtype)


def _float32(built: Built, x: Tensor) -> Tensor:
    found: Tensor = built.own(x)
    return found.to(torch.promote_types(x.dtype, torch.float32))


def _writes(built: Built, x: Tensor) -> Tensor:
    centred = _centred(x)
    x.detach().copy_(centred.detach())
    return _scaled(built.module, centred / _root(centred, built.options))


def _running(module: nn.Module, options: Any, width: int) -> None:
    held: dict[str, Tensor] = {}

    def forward(x: Tensor) -> Tensor:
        square = x.double().square().mean().detach()
        held["square"] = 0.9 * held.get("square", square) + 0.1 * square
        root = (held["square"] + options.eps).sqrt()
        found: Tensor = (_factor(module, options, x.double()) * x.double() / root).to(x.dtype)
        return found

    object.__setattr__(module, "forward", forward)


def _twin_row(module: Any, x: Tensor, options: Any) -> Tensor:
    return _rms(_root)(module, x.contiguous().view(-1, x.shape[-1]).roll(1, 0).view(x.shape), options)


UNIT = {"unit_offset": True}
MUTANTS = law_mutants(
    "norm",
    layer_norm=[
        ("layer_norm_unbiased", "the variance divides by M - 1", _as(_layer(_unbiased))),
        ("layer_norm_eps_outside", "eps is added to the standard deviation", _as(_layer(_eps_outside))),
        (
            "layer_norm_no_eps",
            "eps is left out: a zero vector gives NaN",
            _as(_layer(lambda centred, options: centred.square().mean(-1, keepdim=True).sqrt())),
        ),
        (
            "layer_norm_no_mean",
            "the mean is not subtracted",
            _as(lambda module, x, options: _scaled(module, x / _root(x, options))),
        ),
        (
            "layer_norm_no_root",
            "divides by the variance",
            _as(_layer(lambda centred, options: centred.square().mean(-1, keepdim=True) + options.eps)),
        ),
        ("layer_norm_half", "half dtypes are not computed in float32", _as(_layer(_root), wide=False)),
        ("layer_norm_tokens", "statistics are taken over the tokens", _as(_across_tokens)),
        ("layer_norm_sentence", "statistics are taken over tokens and features", _as(_whole_sentence)),
        (
            "layer_norm_no_weight",
            "the scale is ignored",
            _as(
                lambda module, x, options: (
                    _scaled(module, _centred(x) / _root(_centred(x), options))
                    - _centred(x) / _root(_centred(x), options) * (module.weight.to(x.dtype) - 1)
                )
            ),
            {"bias": True},
        ),
        (
            "layer_norm_no_bias",
            "the shift is ignored",
            _as(lambda module, x, options: module.weight.to(x.dtype) * _centred(x) / _root(_centred(x), options)),
            {"bias": True},
        ),
        (
            "layer_norm_bias_first",
            "the shift is added before the scale",
            _as(
                lambda module, x, options: (
                    module.weight.to(x.dtype) * (_centred(x) / _root(_centred(x), options) + module.bias.to(x.dtype))
                )
            ),
            {"bias": True},
        ),
        (
            "layer_norm_detached",
            "no gradient goes through the statistics",
            _as(_layer(lambda centred, options: _root(centred, options).detach())),
        ),
        ("layer_norm_writes", "the mean is subtracted in place", overriding("forward", _writes)),
        ("layer_norm_float32", "half-precision inputs give float32 outputs", overriding("forward", _float32)),
        (
            "layer_norm_extra",
            "the module has a weight that its entry does not list",
            patched(lambda module, options, width: setattr(module, "gain", nn.Parameter(torch.ones(1)))),
        ),
        (
            "layer_norm_claims",
            "its entry says that it changes nothing",
            declares(claims=lambda options: frozenset({"identity"})),
        ),
    ],
    rms_norm=[
        ("rms_norm_half", "half dtypes are not computed in float32", _as(_rms(_root), wide=False)),
        (
            "rms_norm_rounds_twice",
            "half dtypes are rounded before the scale and after it",
            overriding("forward", _twice_rounded),
        ),
        ("rms_norm_mean", "the mean is subtracted", _as(lambda module, x, options: _rms(_root)(module, _centred(x), options))),
        (
            "rms_norm_sum",
            "divides by the length of the vector, not by its root mean square",
            _as(_rms(lambda x, options: (x.square().sum(-1, keepdim=True) + options.eps).sqrt())),
        ),
        (
            "rms_norm_eps_outside",
            "eps is added to the root",
            _as(_rms(lambda x, options: (x.square().mean(-1, keepdim=True) + 1e-30).sqrt() + options.eps)),
            {"eps": 0.001},
        ),
        (
            "rms_norm_no_eps",
            "eps is left out: a zero vector gives NaN",
            _as(_rms(lambda x, options: x.square().mean(-1, keepdim=True).sqrt())),
        ),
        (
            "rms_norm_no_offset",
            "`unit_offset` is ignored",
            _as(lambda module, x, options: module.weight.to(x.dtype) * x / _root(x, options)),
            UNIT,
        ),
        (
            "rms_norm_weight_twice",
            "the scale is applied twice",
            _as(lambda module, x, options: _factor(module, options, x) ** 2 * x / _root(x, options)),
        ),
        ("rms_norm_detached", "no gradient goes through the root", _as(_rms(lambda x, options: _root(x, options).detach()))),
        ("rms_norm_running", "statistics of earlier calls are mixed in", patched(_running)),
        (
            "rms_norm_last_feature",
            "the last feature is left out of the mean",
            _as(_rms(lambda x, options: (x[..., :-1].square().mean(-1, keepdim=True) + options.eps).sqrt())),
        ),
        ("rms_norm_other_token", "tokens are exchanged", _as(_twin_row)),
        (
            "rms_norm_parameters",
            "its entry lists a weight of another shape",
            lambda subject: replace(
                subject,
                entry=replace(
                    subject.entry,
                    parameters=lambda options, width: tuple(
                        replace(p, shape=(width + 1,)) for p in subject.entry.parameters(options, width)
                    ),
                ),
            ),
        ),
    ],
    none=[
        ("no_norm_nudged", "numbers grow by 1 %", overriding("forward", lambda built, x: x * 1.01)),
    ],
)
