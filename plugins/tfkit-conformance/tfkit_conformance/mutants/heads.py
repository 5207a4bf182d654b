"""Heads that read the wrong key/value head or pass gradients to it: rule A1 broken."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, AttentionOutput

from .kernel import stages
from .kernel.kernel import Kernel
from .mutant import of_family

mutant = of_family("heads")
UNGROUPED = "every query head has a key/value head of its own"


def tiled(tensor: Tensor, heads: int) -> Tensor:
    return tensor.repeat(1, heads // tensor.shape[1], 1, 1)


def gather_tiled(gradient: Tensor, groups: int) -> Tensor:
    B, H, *rest = gradient.shape
    return gradient.reshape(B, H // groups, groups, *rest).sum(1)


def head_before(tensor: Tensor, heads: int) -> Tensor:
    return stages.read_heads(tensor.roll(1, 1), heads)


def heads_reversed(call: AttentionInputs, options: object) -> AttentionOutput:
    answer = Kernel()(call)
    return replace(answer, output=answer.output.flip(1))


MUTANTS = (
    mutant("heads_interleaved", "query head h reads key/value head h % G instead of h // (H / G)",
          Kernel(read_keys=tiled, read_values=tiled, gather=gather_tiled), f"{UNGROUPED}, or there is one for all"),
    mutant("values_interleaved", "values, unlike keys, are read from head h % G", Kernel(read_values=tiled),
          f"{UNGROUPED}, or there is one for all"),
    mutant("heads_reversed", "the heads of the output are in reverse order", heads_reversed),
    mutant("first_group_for_all", "every query head reads the first key/value head",
          Kernel(read_keys=lambda tensor, heads: tensor[:, :1].expand(-1, heads, -1, -1),
                 read_values=lambda tensor, heads: tensor[:, :1].expand(-1, heads, -1, -1)), "there is one key/value head"),
    mutant("keys_of_previous_group", "keys, unlike values, are read from the key/value head before",
          Kernel(read_keys=head_before), "there is one key/value head"),
    mutant("group_off_by_one", "query head h reads the key/value head of h + 1",
          Kernel(read_keys=lambda tensor, heads: stages.read_heads(tensor, heads).roll(-1, 1),
                 read_values=lambda tensor, heads: stages.read_heads(tensor, heads).roll(-1, 1)),
          "there is one key/value head"),
    mutant("group_gradient_of_last_head", "a key/value head gets the gradient of its last query head alone",
          Kernel(gather=lambda gradient, groups: stages.per_group(gradient, groups)[:, :, -1]), UNGROUPED),
    mutant("group_gradient_averaged", "the gradients of the query heads of one group are averaged instead of summed",
          Kernel(gather=lambda gradient, groups: stages.per_group(gradient, groups).mean(2)), UNGROUPED),
    mutant("group_gradient_interleaved", "gradients go to key/value head h % G", Kernel(gather=gather_tiled),
          f"{UNGROUPED}, or there is one for all"),
    mutant("group_gradient_overwritten", "of two heads of a group that write one gradient, the larger is kept",
          Kernel(gather=lambda gradient, groups: torch.amax(stages.per_group(gradient, groups), 2)), UNGROUPED),
)  # fmt: skip
"""The mutants of this family."""
