"""Checks of single inputs of a model. Nothing is cast, padded or broadcast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import Diagnostic, InputError
from .node_output import Padding


def check_tensor(label: str, given: Any) -> None:
    """Raises InputError if `given` is not a tensor."""
    if not isinstance(given, Tensor):
        raise InputError(Diagnostic("TFK071", f"{label} is a {type(given).__name__}", "give a tensor"))


def check_ids(name: str, ids: Tensor, vocab_size: int) -> None:
    """Raises InputError unless ids (B, L) are ids of this vocabulary. On CUDA an assertion on the device avoids a sync."""
    check_tensor(f"`{name}`", ids)
    shape = tuple(ids.shape)
    if ids.dtype not in (torch.int64, torch.int32):
        raise InputError(Diagnostic("TFK071", f"`{name}` has dtype {ids.dtype}", "token ids are int64 or int32"))
    if ids.dim() != 2 or 0 in shape:
        raise InputError(Diagnostic("TFK070", f"`{name}` has shape {shape}", "token ids are (batch, length), both at least 1"))
    if torch.compiler.is_compiling() or ids.is_meta:
        return
    if ids.device.type != "cpu":
        torch._assert_async(
            ((ids >= 0) & (ids < vocab_size)).all(), f"TFK072: an id in `{name}` is outside 0..{vocab_size - 1}"
        )
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        row, column = ((ids == wrong).nonzero()[0]).tolist()
        message = f"`{name}` {shape} holds the id {wrong} at [{row}, {column}], but the vocabulary has {vocab_size} ids"
        raise InputError(Diagnostic("TFK072", message, f"ids are 0..{vocab_size - 1}"))


def check_places(parameter: nn.Parameter | None, tensors: Mapping[str, Any]) -> None:
    """Raises InputError if a tensor is not on the device of `parameter`, a parameter of the model. Sharded and offloaded
    parameters are skipped, since they move when they are used."""
    if type(parameter) is not nn.Parameter:
        return
    for label, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.device != parameter.device:
            message = f"{label} is on {tensor.device}, the model on {parameter.device}"
            raise InputError(Diagnostic("TFK071", message, "move one of them: `.to(model.device)`, or `model.to(...)`"))


def check_segments(name: str, segments: Tensor, ids: Tensor, count: int) -> None:
    """Raises InputError unless segments are (B, L) integers below `count`, the size of the segment table (0: no table)."""
    if not count:
        message = f"`{name}` has no segments: `segments` are token types, as BERT's, and this node has no table of them"
        fix = (
            "for token types, write `segments: 2` at the node; for packed documents, give each document a row of its own and "
            "`lengths`: a call of a model cannot hold several in one row"
        )
        raise InputError(Diagnostic("TFK073", message, fix))
    check_tensor(f"`segments of {name}`", segments)
    if segments.shape != ids.shape:
        message = f"the segments of `{name}` have shape {tuple(segments.shape)}, its ids {tuple(ids.shape)}"
        raise InputError(Diagnostic("TFK070", message))
    check_ids(f"segments of {name}", segments, count)


def given_padding(name: str, shape: torch.Size, mask: Tensor | None, lengths: Tensor | None) -> Padding | None:
    """The padding of a sequence of `shape` (B, L) from a mask (B, L) bool or lengths (B,) integers; None if neither is
    given."""
    if mask is not None and lengths is not None:
        raise InputError(Diagnostic("TFK073", f"both a mask and lengths are given for `{name}`", "give one"))
    if mask is not None:
        check_tensor(f"the mask of `{name}`", mask)
        if mask.dtype is not torch.bool or mask.shape != shape:
            message = f"the mask of `{name}` is {mask.dtype} {tuple(mask.shape)}, its batch and length are {tuple(shape)}"
            raise InputError(Diagnostic("TFK070", message, "a mask is bool (batch, length), True for real tokens"))
        return Padding(visible=mask)
    if lengths is not None:
        check_tensor(f"the lengths of `{name}`", lengths)
        if lengths.is_floating_point() or lengths.dtype is torch.bool or lengths.shape != shape[:1]:
            message = (
                f"the lengths of `{name}` are {lengths.dtype} {tuple(lengths.shape)}, its batch and length are {tuple(shape)}"
            )
            raise InputError(Diagnostic("TFK070", message, "lengths are integers, one per row"))
        return Padding(lengths=lengths)
    return None
