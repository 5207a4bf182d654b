"""Checks of inputs of real numbers: images and frames of features. Nothing is cast, scaled, resized or broadcast.

Images of bytes are refused, because how they are scaled and normalised belongs to the data, not to the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import Diagnostic, InputError
from ...slots.node import FeatureRule, ImageRule
from .input_checks import check_tensor


def check_images(name: str, images: Tensor, rule: ImageRule, parameter: nn.Parameter | None) -> None:
    """Raises InputError unless images are (B, channels, H, W) of the size and dtype that the model takes, and finite."""
    check_tensor(f"`{name}`", images)
    shape = tuple(images.shape)
    size = f"multiples of {rule.patch}" if rule.any_size else f"{rule.size} x {rule.size}"
    if images.dim() != 4 or 0 in shape:
        fix = f"images are (batch, channels, height, width): (B, {rule.channels}, H, W), H and W {size}"
        raise InputError(Diagnostic("TFK070", f"`{name}` has shape {shape}", fix))
    _, channels, height, width = shape
    if channels != rule.channels:
        message = f"`{name}` {shape} has {channels} {_channels(channels)}, the model takes {rule.channels}"
        fix = "the second axis is that of channels: images.permute(0, 3, 1, 2)" if width == rule.channels else ""
        raise InputError(
            Diagnostic("TFK070", message, fix or f"convert the images, or write `channels: {channels}` in the spec")
        )
    fits = height % rule.patch == width % rule.patch == 0 if rule.any_size else height == width == rule.size
    if not fits:
        message = f"`{name}` {shape} holds images of {height} x {width}, the model takes {size}"
        fix = "resize or crop them" if rule.any_size else "resize them, or write `any_size: true` at the node"
        raise InputError(Diagnostic("TFK070", message, fix))
    _check_numbers(name, images, "images", parameter)


def check_features(name: str, features: Tensor, rule: FeatureRule, parameter: nn.Parameter | None) -> None:
    """Raises InputError unless features are (B, L, size) of the dtype that the model takes, and finite."""
    check_tensor(f"`{name}`", features)
    shape = tuple(features.shape)
    if features.dim() != 3 or 0 in shape or shape[2] != rule.size:
        turned = features.dim() == 3 and shape[1] == rule.size
        fix = "the last axis is that of features: features.mT" if turned else ""
        form = f"features are (batch, length, {rule.size})"
        raise InputError(Diagnostic("TFK070", f"`{name}` has shape {shape}; {form}", fix or "batch and length are at least 1"))
    _check_numbers(name, features, "features", parameter)


def _check_numbers(name: str, given: Tensor, kind: str, parameter: nn.Parameter | None) -> None:
    """Raises InputError unless all numbers are finite and of the model's dtype. On CUDA an assertion avoids a sync."""
    if not given.is_floating_point():
        fix = f"scale and normalise them as in training, for instance {kind}.float() / 255"
        raise InputError(Diagnostic("TFK071", f"`{name}` has dtype {given.dtype}, {kind} are real numbers", fix))
    # Sharded and offloaded parameters are cast when they are used; autocast casts the input.
    known = type(parameter) is nn.Parameter and not torch.is_autocast_enabled(given.device.type)
    if known and parameter is not None and given.dtype is not parameter.dtype:
        message = f"`{name}` has dtype {given.dtype}, the model {parameter.dtype}"
        raise InputError(Diagnostic("TFK071", message, f"convert it: {kind}.to(model.dtype)"))
    if torch.compiler.is_compiling() or given.is_meta:
        return
    finite = given.isfinite()
    if given.device.type != "cpu":
        torch._assert_async(finite.all(), f"TFK079: `{name}` holds NaN or infinity")
    elif not bool(finite.all()):
        place = (~finite).nonzero()[0].tolist()
        message = f"`{name}` {tuple(given.shape)} holds {float(given[tuple(place)])} at {place}"
        raise InputError(Diagnostic("TFK079", message, f"{kind} are finite numbers; was there a log of 0 or a division by 0?"))


def _channels(count: int) -> str:
    return "channel" if count == 1 else "channels"
