"""Mutants of norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tfkit_conformance.laws.law import PartUnderTest

from .mutant import Built, Change, declares, law_mutants, overriding, patched


def _wide(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _as(rule: Callable[[Built, Tensor], Tensor], wide: bool = True) -> Change:
    """The module computes `rule(built, x)`, by default in float32 at least."""
    return overriding("forward", lambda built, x: rule(built, _wide(x) if wide else x).to(x.dtype))


def _weight(built: Built, like: Tensor) -> Tensor:
    weight: Tensor = built.module.weight.to(like.dtype)
    return weight + 1.0 if getattr(built.options, "unit_offset", False) else weight


def _bias(built: Built, like: Tensor) -> Tensor | float:
    bias = dict(built.module.named_parameters()).get("bias")
    return 0.0 if bias is None else bias.to(like.dtype)


def _scaled(built: Built, normed: Tensor) -> Tensor:
    """weight x + bias."""
    return normed * _weight(built, normed) + _bias(built, normed)


def _centred(x: Tensor, dims: Any = -1) -> Tensor:
    return x - x.mean(dims, keepdim=True)


def _root(x: Tensor, eps: float, dims: Any = -1) -> Tensor:
    return torch.sqrt(x.square().mean(dims, keepdim=True) + eps)


def _layer(divisor: Callable[[Tensor, float], Tensor] = _root, wide: bool = True) -> Change:
    """Layer norm with another divisor of the centred vector: `divisor(centred, eps)`."""
    return _as(lambda built, x: _scaled(built, _centred(x) / divisor(_centred(x), built.options.eps)), wide)


def _rms(divisor: Callable[[Tensor, float], Tensor] = _root, wide: bool = True) -> Change:
    """RMS norm with another divisor: `divisor(x, eps)`."""
    return _as(lambda built, x: _scaled(built, x / divisor(x, built.options.eps)), wide)


def _over(dims: tuple[int, ...]) -> Change:
    """Layer norm with statistics over other axes."""

    def rule(built: Built, x: Tensor) -> Tensor:
        own = dims if x.dim() > 1 else (-1,)
        centred = _centred(x, own)
        return _scaled(built, centred / _root(centred, built.options.eps, own))

    return _as(rule)


def _normed(built: Built, x: Tensor) -> Tensor:
    """The centred vector over its deviation."""
    return _centred(x) / _root(_centred(x), built.options.eps)


def _twice_rounded(built: Built, x: Tensor) -> Tensor:
    return _weight(built, x) * (_wide(x) / _root(_wide(x), built.options.eps)).to(x.dtype)


def _writes(built: Built, x: Tensor) -> Tensor:
    found = _scaled(built, _normed(built, x))
    x.detach().copy_(_centred(x).detach())
    return found


def _running(module: nn.Module, options: Any, width: int) -> None:
    held: dict[str, Tensor] = {}

    def forward(x: Tensor) -> Tensor:
        square = x.double().square().mean().detach()
        held["square"] = 0.9 * held.get("square", square) + 0.1 * square
        scaled = _weight(Built(module, options, width, forward), x.double()) * x.double()
        found: Tensor = scaled / (held["square"] + options.eps).sqrt()
        return found.to(x.dtype)

    object.__setattr__(module, "forward", forward)


def _extra_weight(module: nn.Module, options: Any, width: int) -> None:
    module.gain = nn.Parameter(torch.ones(1))


def _wider_weight(subject: PartUnderTest) -> PartUnderTest:
    own = subject.entry.parameters

    def parameters(options: Any, width: int) -> tuple[Any, ...]:
        return tuple(replace(parameter, shape=(width + 1,)) for parameter in own(options, width))

    return replace(subject, entry=replace(subject.entry, parameters=parameters))


BIAS, UNIT = {"bias": True}, {"unit_offset": True}
MUTANTS = law_mutants(
    "norm",
    layer_norm=[
        (
            "layer_norm_unbiased",
            "the variance divides by M - 1",
            _layer(lambda c, eps: torch.sqrt(c.square().sum(-1, keepdim=True) / (c.shape[-1] - 1) + eps)),
        ),
        ("layer_norm_eps_outside", "eps is added to the standard deviation", _layer(lambda c, eps: _root(c, 1e-30) + eps)),
        ("layer_norm_no_eps", "eps is left out: a zero vector gives NaN", _layer(lambda c, eps: _root(c, 0.0))),
        ("layer_norm_no_mean", "the mean is not subtracted", _rms()),
        ("layer_norm_no_root", "divides by the variance", _layer(lambda c, eps: _root(c, eps).square())),
        ("layer_norm_half", "half dtypes are not computed in float32", _layer(wide=False)),
        ("layer_norm_tokens", "statistics are taken over the tokens", _over((-2,))),
        ("layer_norm_sentence", "statistics are taken over tokens and features", _over((-2, -1))),
        ("layer_norm_no_weight", "the scale is ignored", _as(lambda built, x: _normed(built, x) + _bias(built, x)), BIAS),
        ("layer_norm_no_bias", "the shift is ignored", _as(lambda built, x: _normed(built, x) * _weight(built, x)), BIAS),
        (
            "layer_norm_bias_first",
            "the shift is added before the scale",
            _as(lambda built, x: _weight(built, x) * (_normed(built, x) + _bias(built, x))),
            BIAS,
        ),
        (
            "layer_norm_detached",
            "no gradient goes through the statistics",
            _layer(lambda c, eps: _root(c, eps).detach()),
        ),
        ("layer_norm_writes", "the mean is subtracted in place", overriding("forward", _writes)),
        (
            "layer_norm_float32",
            "half-precision inputs give float32 outputs",
            overriding("forward", lambda built, x: _wide(built.own(x))),
        ),
        ("layer_norm_extra", "the module has a weight that its entry does not list", patched(_extra_weight)),
        (
            "layer_norm_claims",
            "its entry says that it changes nothing",
            declares(claims=lambda options: frozenset({"identity"})),
        ),
    ],
    rms_norm=[
        ("rms_norm_half", "half dtypes are not computed in float32", _rms(wide=False)),
        (
            "rms_norm_rounds_twice",
            "half dtypes are rounded before the scale and after it",
            overriding("forward", _twice_rounded),
        ),
        ("rms_norm_mean", "the mean is subtracted", _layer()),
        (
            "rms_norm_sum",
            "divides by the length of the vector, not by its root mean square",
            _rms(lambda x, eps: (x.square().sum(-1, keepdim=True) + eps).sqrt()),
        ),
        ("rms_norm_eps_outside", "eps is added to the root", _rms(lambda x, eps: _root(x, 1e-30) + eps), {"eps": 1e-3}),
        ("rms_norm_no_eps", "eps is left out: a zero vector gives NaN", _rms(lambda x, eps: _root(x, 0.0))),
        (
            "rms_norm_no_offset",
            "`unit_offset` is ignored",
            _as(lambda built, x: built.module.weight.to(x.dtype) * x / _root(x, built.options.eps)),
            UNIT,
        ),
        (
            "rms_norm_weight_twice",
            "the scale is applied twice",
            _as(lambda built, x: _weight(built, x) ** 2 * x / _root(x, built.options.eps)),
        ),
        ("rms_norm_detached", "no gradient goes through the root", _rms(lambda x, eps: _root(x, eps).detach())),
        ("rms_norm_running", "statistics of earlier calls are mixed in", patched(_running)),
        ("rms_norm_last_feature", "the last feature is left out of the mean", _rms(lambda x, eps: _root(x[..., :-1], eps))),
        (
            "rms_norm_other_token",
            "tokens are exchanged",
            overriding("forward", lambda built, x: built.own(x.contiguous().view(-1, x.shape[-1]).roll(1, 0).view(x.shape))),
        ),
        ("rms_norm_parameters", "its entry lists a weight of another shape", _wider_weight),
    ],
    batch_norm=[
        (
            "batch_norm_padding",
            "padding is counted",
            overriding("forward", lambda built, x, real=None: built.own(x)),
        ),
        (
            "batch_norm_undeclared",
            "its entry does not say that its statistics are over the batch",
            declares(over_batch=False),
        ),
    ],
    none=[("no_norm_nudged", "numbers grow by 1 %", overriding("forward", lambda built, x: x * 1.01))],
)
