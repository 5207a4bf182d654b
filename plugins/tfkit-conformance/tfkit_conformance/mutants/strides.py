"""Backends that assume the usual memory layout of a tensor: the last part of rule A1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, AttentionOutput

from .kernel import stages
from .kernel.kernel import Kernel
from .mutant import of_family

mutant = of_family("strides")


def read_with(tensor: Tensor, strides: tuple[int, ...], start: int) -> Tensor:
    """The numbers that a kernel reads if it assumes these strides."""
    tensor = tensor.detach()
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    memory = torch.as_strided(tensor, (size,), (1,), 0)
    place = torch.full((), start, dtype=torch.int64, device=tensor.device)
    for axis, stride in enumerate(strides):
        shape = [-1 if other == axis else 1 for other in range(tensor.dim())]
        place = place + stride * torch.arange(tensor.shape[axis], device=tensor.device).view(shape)
    return memory[place % size]


def contiguous_strides(tensor: Tensor) -> tuple[int, ...]:
    return torch.empty(tensor.shape, device="meta").stride()


def as_contiguous(tensor: Tensor) -> Tensor:
    return read_with(tensor, contiguous_strides(tensor), int(tensor.storage_offset()))


def from_start(tensor: Tensor) -> Tensor:
    return read_with(tensor, tensor.stride(), 0)


def last_axis_dense(tensor: Tensor) -> Tensor:
    return read_with(tensor, (*tensor.stride()[:-1], 1), int(tensor.storage_offset()))


def batch_not_expanded(tensor: Tensor) -> Tensor:
    """A batch row is taken to begin where the one before ends."""
    rows = sum((size - 1) * stride for size, stride in zip(tensor.shape[1:], tensor.stride()[1:], strict=True)) + 1
    return read_with(tensor, (tensor.stride(0) or rows, *tensor.stride()[1:]), int(tensor.storage_offset()))


def misread(leaf: str, reads: Callable[[Tensor], Tensor]) -> Callable[[AttentionInputs, object], AttentionOutput]:
    """The kernel, one of whose inputs is read wrongly; its gradient goes where it should."""

    def attend(call: AttentionInputs, options: object) -> AttentionOutput:
        tensor: Tensor = getattr(call, leaf)
        return Kernel()(replace(call, **{leaf: tensor + (reads(tensor) - tensor.detach())}))  # type: ignore[arg-type]

    return attend


MUTANTS = (
    mutant("query_taken_as_contiguous", "the query is read as if it were contiguous", misread("query", as_contiguous),
          "the query is contiguous"),
    mutant("key_taken_as_contiguous", "the key is read as if it were contiguous", misread("key", as_contiguous),
          "the key is contiguous"),
    mutant("value_last_axis_taken_as_dense", "the value is read as if its last axis had stride 1",
          misread("value", last_axis_dense), "its last axis has stride 1"),
    mutant("value_taken_as_unexpanded", "an expanded value is read as if each batch row had memory of its own",
          misread("value", batch_not_expanded), "the value is not expanded"),
    mutant("key_read_from_start_of_memory", "a key that is a slice is read from the start of its memory",
          misread("key", from_start), "the key starts its memory"),
    mutant("grad_output_taken_as_contiguous", "the output gradient is read as if it were contiguous",
          Kernel(incoming=lambda grad_output, rows: stages.only_seeing_rows(as_contiguous(grad_output), rows)),
          "the output gradient is contiguous"),
    mutant("grad_output_last_axis_taken_as_dense", "the output gradient is read as if its last axis had stride 1",
          Kernel(incoming=lambda grad_output, rows: stages.only_seeing_rows(last_axis_dense(grad_output), rows)),
          "its last axis has stride 1"),
)  # fmt: skip
"""The mutants of this family."""
