"""The same call written in another way that the contract allows, drawn at random.

integers        lengths, offsets and segments in a narrower type; segments with negative and with large numbers; lengths and
                windows at the limits of 31, 32 and 63 bits
memory          masks and biases that are not contiguous, or that repeat one number along an axis
axes            leading axes of size 1 left out of a mask or a bias, all of them too
graph           inputs that are results of operations, not leaves of the graph
numbers         slopes of either sign, rows of scores far from zero, large keys beside a small scale
scores          a score function, the dot product with the other sign, where any is declared
gradients       wanted of some of the tensors only, or of none
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, Bias, DenseBias, DistanceBias, LinearBias, Mask

from ..attention.backend_under_test import BackendUnderTest
from ..attention.compare import leaves_of, request_of
from ..attention.score_functions import negated_product, negated_product_of_wide_keys
from ..relations.paired_calls import leaf_copies, with_leaves
from .layers import mask_tensors

NARROW = (torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint8)
"""An unsigned type is the one in which a difference goes wrong, so it comes twice."""
LIMITS = (2**31 - 1, 2**31, 2**32, 2**32 + 1)
"""Beyond these a number of 31 or 32 bits is another one."""
LONGEST, WIDEST = 2**63 - 1, 2**61
"""The largest length, and a side of a window that may be added to any position."""
INTEGERS = ("offset", "key_lengths", "query_lengths", "query_segments", "key_segments")


def respelled(inputs: AttentionInputs, draw: random.Random, subject: BackendUnderTest) -> AttentionInputs:
    """The call in another form. Each change is left out where the declaration refuses it."""
    changes: tuple[tuple[float, Callable[[AttentionInputs], AttentionInputs]], ...] = (
        (0.5, lambda call: replace(call, mask=_at_limits(call, draw))),
        (0.4, lambda call: replace(call, mask=_narrow(call.mask, draw))),
        (0.3, lambda call: replace(call, mask=_other_segments(call.mask, draw))),
        (0.3, lambda call: _in_strides(call, draw.random() < 0.5)),
        (0.6, lambda call: _repeated(call, draw)),
        (0.3, fewer_axes),
        (0.3, lambda call: replace(call, bias=_other_numbers(call.bias, draw))),
        (0.2, lambda call: _larger_keys(call, subject)),
        (0.08 * ("*" in subject.capabilities.scores), lambda call: _scored(call, draw)),
        (0.4, lambda call: _some_gradients(call, draw)),
        (0.15, lambda call: _results(call, draw)),
    )
    for share, change in changes:
        if draw.random() < share:
            other = change(inputs)
            inputs = other if subject.accepts(request_of(other)) else inputs
    return inputs


def overwrite(inputs: AttentionInputs, other: AttentionInputs, unseen: bool = False) -> bool:
    """Puts the numbers of another call into the tensors of one. False where their memory does not allow it. `unseen`: by
    another name of the memory, so that torch's version counters stay, as where another library writes."""
    pairs = [*zip(leaves_of(inputs).values(), leaves_of(other).values(), strict=True),
             *zip(mask_tensors(inputs.mask), mask_tensors(other.mask), strict=True)]  # fmt: skip
    if any(tensor.shape != new.shape or (0 in tensor.stride() and tensor.numel() > 1) for tensor, new in pairs):
        return False
    with torch.no_grad():
        for tensor, new in pairs:
            (tensor.data if unseen else tensor).copy_(new)
    return True


def invert(mask: Mask) -> None:
    """Other contents in all tensors of a mask."""
    for tensor in mask_tensors(mask):
        if 0 not in tensor.stride():
            tensor.copy_(~tensor if tensor.dtype == torch.bool else tensor + 1)


def _at_limits(inputs: AttentionInputs, draw: random.Random) -> Mask:
    """Lengths that show all, and those that show nothing, far beyond any size; wide sides of a window where one is open."""
    mask, changed = inputs.mask, dict[str, Any]()
    for name, size in (("key_lengths", inputs.value.shape[2]), ("query_lengths", inputs.query.shape[2])):
        lengths: Tensor | None = getattr(mask, name)
        if lengths is not None and lengths.dtype == torch.int64:
            most = draw.choice([*LIMITS, LONGEST])
            changed[name] = lengths.where(lengths < size, most).where(lengths > 0, -draw.choice([0, *LIMITS, LONGEST]))
    if mask.window is not None and None in mask.window:
        left, right = (draw.choice([*LIMITS, WIDEST]) if side is None else side for side in mask.window)
        changed["window"] = (left, right)
    return replace(mask, **changed)


def _narrow(mask: Mask, draw: random.Random) -> Mask:
    changed: dict[str, Any] = {}
    for name in INTEGERS:
        tensor = getattr(mask, name)
        if isinstance(tensor, Tensor) and draw.random() < 0.6:
            narrow = tensor.to(draw.choice(NARROW))
            if bool((narrow.long() == tensor).all()):
                changed[name] = narrow
    return replace(mask, **changed)


def _other_segments(mask: Mask, draw: random.Random) -> Mask:
    if mask.query_segments is None or mask.key_segments is None or mask.query_segments.dtype != mask.key_segments.dtype:
        return mask
    factor, shift = draw.choice([(1, -2), (1, 2**31), (2**32, 0)])  # equal only in all of their 64 bits
    segments = {name: getattr(mask, name).long() * factor + shift for name in ("query_segments", "key_segments")}
    return replace(mask, **segments)


def _in_strides(inputs: AttentionInputs, reversed_axes: bool) -> AttentionInputs:
    """Masks and biases as every other element of larger tensors, or with their axes in the other order in memory."""

    def strided(tensor: Tensor) -> Tensor:
        axes = tuple(reversed(range(tensor.dim())))
        larger = tensor.new_zeros([2 * size for size in tensor.shape])
        part = larger[tuple(slice(None, None, 2) for _ in axes)]
        if reversed_axes:
            part = tensor.new_empty([tensor.shape[axis] for axis in axes]).permute(axes)
        with torch.no_grad():
            part.copy_(tensor)
        return part.detach().requires_grad_(tensor.requires_grad)

    written = {name: getattr(inputs.mask, name) for name in (*INTEGERS, "key_visible", "visible")}
    terms: dict[str, Any] = {name: strided(term) for name, term in written.items() if isinstance(term, Tensor)}
    bias = inputs.bias
    if isinstance(bias, LinearBias):
        bias = LinearBias(strided(bias.slopes))
    elif isinstance(bias, DistanceBias):
        bias = DistanceBias(strided(bias.values), bias.low)
    elif isinstance(bias, DenseBias):
        bias = DenseBias(strided(bias.values))
    return replace(inputs, mask=replace(inputs.mask, **terms), bias=bias)


def _repeated(inputs: AttentionInputs, draw: random.Random) -> AttentionInputs:
    """Masks and biases that differ along some axes alone, as large tensors with stride 0 along the others."""
    sizes = (*inputs.query.shape[:3], inputs.value.shape[2])

    def repeated(tensor: Tensor) -> Tensor:
        axes = [size if draw.random() < 0.7 else old for size, old in zip(sizes, tensor.shape, strict=True)]
        return tensor.detach().expand(axes).requires_grad_(tensor.requires_grad)

    mask, bias = inputs.mask, inputs.bias
    if mask.visible is not None and mask.visible.dim() == 4:
        mask = replace(mask, visible=repeated(mask.visible))
    if isinstance(bias, DenseBias) and bias.values.dim() == 4:
        bias = DenseBias(repeated(bias.values))
    return replace(inputs, mask=mask, bias=bias)


def fewer_axes(inputs: AttentionInputs) -> AttentionInputs:
    """Masks and biases without their leading axes of size 1."""

    def squeezed(tensor: Tensor) -> Tensor:
        while tensor.dim() > 0 and tensor.shape[0] == 1:
            tensor = tensor[0]
        return tensor

    mask, bias = inputs.mask, inputs.bias
    if mask.visible is not None:
        mask = replace(mask, visible=squeezed(mask.visible))
    if isinstance(bias, DenseBias):
        bias = DenseBias(squeezed(bias.values).detach().clone().requires_grad_(bias.values.requires_grad))
    return replace(inputs, mask=mask, bias=bias)


def _other_numbers(bias: Bias | None, draw: random.Random) -> Bias | None:
    if isinstance(bias, LinearBias):
        signs = torch.tensor([draw.choice([1.0, -1.0, 0.0, 8.0]) for _ in bias.slopes], device=bias.slopes.device)
        return LinearBias((bias.slopes.detach() * signs).requires_grad_(bias.slopes.requires_grad))
    if isinstance(bias, (DenseBias, DistanceBias)) and bias.values.dtype in (torch.float32, torch.float64):
        values = bias.values.detach() + draw.choice([-3e6, -2e5, -1e3, 1e3, 1e5])
        return replace(bias, values=values.requires_grad_(bias.values.requires_grad))
    return bias


def _larger_keys(inputs: AttentionInputs, subject: BackendUnderTest) -> AttentionInputs:
    """Keys times a power of two, up to the range of float16, and the scale divided by it: the same scores, from products that
    the scale alone makes small. A backend that keeps scores or gradients in the storage type may let them overflow."""
    numerics, largest = subject.capabilities.numerics, float(inputs.key.detach().abs().max())
    if "storage" in (numerics.scores, numerics.gradients) or numerics.query_prescaled or not 2.0**-8 < largest < 2.0**14:
        return inputs
    factor = 2.0 ** (14 - math.ceil(math.log2(largest)))
    return replace(leaf_copies(inputs, key=inputs.key.detach() * factor), scale=inputs.scale / factor)


def _scored(inputs: AttentionInputs, draw: random.Random) -> AttentionInputs:
    wide = draw.random() < 0.3
    changes = negated_product_of_wide_keys(inputs, draw.randint(1, 20)) if wide else negated_product(inputs)
    return replace(inputs, **changes)


def _some_gradients(inputs: AttentionInputs, draw: random.Random) -> AttentionInputs:
    leaves: dict[str, Any] = leaves_of(inputs)
    wanted = {name: leaf.requires_grad and draw.random() < 0.5 for name, leaf in leaves.items()}
    for name, leaf in leaves.items():
        leaf.requires_grad_(wanted[name])
    return inputs


def _results(inputs: AttentionInputs, draw: random.Random) -> AttentionInputs:
    """Tensors that are results of operations, views or not, as those of a model are."""
    view = draw.random() < 0.5
    leaves = leaves_of(inputs)
    return with_leaves(inputs, {name: leaf.view_as(leaf) if view else leaf * 1.0 for name, leaf in leaves.items()})
