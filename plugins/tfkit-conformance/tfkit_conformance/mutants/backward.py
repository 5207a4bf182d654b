"""Correct forward passes with wrong backward passes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs

from .kernel import stages
from .kernel.kernel import Kernel
from .mutant import of_family
from .softmax import in_bfloat16

mutant = of_family("backward")
Found = dict[str, Tensor]


def gradient(leaf: str, change: Callable[[Tensor, AttentionInputs], Tensor]) -> Kernel:
    """The kernel whose gradient of one input is changed at the end."""
    return Kernel(gradients=lambda gradients, call: {**gradients, leaf: change(gradients[leaf], call)})


def added(leaf: str, change: Callable[[Tensor, Tensor, slice, AttentionInputs], Tensor]) -> Kernel:
    """The kernel that adds up the gradient of one input in another way."""

    def add(name: str, total: Tensor, term: Tensor, columns: slice, call: AttentionInputs) -> Tensor:
        return change(total, term, columns, call) if name == leaf else total + term

    return Kernel(add=add)


def is_last(columns: slice, call: AttentionInputs) -> bool:
    return bool(columns.stop == call.key.shape[2] and columns.start > 0)


def is_rest(columns: slice) -> bool:
    """Whether these are the keys after the last full block of 16, of several."""
    return bool(columns.stop - columns.start < 16 < columns.stop)


def without(tensor: Tensor, row: int) -> Tensor:
    """One row of the third axis, zeroed."""
    changed = tensor.clone()
    changed[:, :, row] = 0.0
    return changed


MUTANTS = (
    mutant("backward_without_row_sums", "D, the row sums of dO times O, is left out of the backward pass",
          Kernel(row_sums=lambda grad_output, output: torch.zeros_like(output[..., :1]))),
    mutant("backward_row_sums_of_next_row", "D is read from the next query row",
          Kernel(row_sums=lambda grad_output, output: stages.row_sums(grad_output, output).roll(-1, 2)), "there is one query"),
    mutant("backward_row_sums_without_last_feature", "D leaves out the last value feature",
          Kernel(row_sums=lambda grad_output, output: stages.row_sums(grad_output[..., :-1], output[..., :-1]))),
    mutant("backward_lse_without_maximum", "the backward pass reads a log-sum-exp without the maximum",
          Kernel(lse_again=lambda lse, total: torch.log(total))),
    mutant("backward_mask_ignored", "the mask is ignored in the backward pass",
          Kernel(see_again=lambda visible, call: torch.ones_like(visible)), "no key is hidden"),
    mutant("backward_mask_causal_from_zero", "a causal call's backward pass starts from position 0 whatever the offset",
          Kernel(see_again=lambda visible, call: visible & (visible.tril() if call.mask.causal else visible)),
          "the offset is 0"),
    mutant("backward_query_skips_last_block", "the last block of keys is left out of the query's gradient",
          added("query", lambda total, term, columns, call: total if is_last(columns, call) else total + term),
          "all keys are in one block of 16"),
    mutant("backward_key_skips_last_block", "the keys after the last full block get no gradient",
          added("key", lambda total, term, columns, call: total if is_rest(columns) else total + term),
          "K is below 17 or a multiple of 16"),
    mutant("backward_query_overwritten", "the query's gradient is overwritten by every block instead of added to",
          added("query", lambda total, term, columns, call: term), "all keys are in one block of 16"),
    mutant("backward_last_block_without_row_sums", "D is left out in the last block of keys",
          Kernel(grad_scores=lambda p, dp, row_sums, columns, K: p * (dp - row_sums) if columns.stop < K else p * dp)),
    mutant("backward_query_unscaled", "the query's gradient lacks the scale",
          gradient("query", lambda grad, call: grad / call.scale)),
    mutant("backward_key_unscaled", "the key's gradient lacks the scale",
          gradient("key", lambda grad, call: grad / call.scale)),
    mutant("backward_query_scaled_twice", "the query's gradient has the scale twice",
          gradient("query", lambda grad, call: grad * call.scale)),
    mutant("backward_first_key_zero", "the first key gets no gradient", gradient("key", lambda grad, call: without(grad, 0))),
    mutant("backward_last_value_zero", "the last value gets no gradient",
          gradient("value", lambda grad, call: without(grad, -1)),
          "the last key is hidden from every query"),
    mutant("backward_last_query_zero", "the last query gets no gradient",
          gradient("query", lambda grad, call: without(grad, -1))),
    mutant("backward_query_two_percent", "the query's gradient is 2 % too large",
          gradient("query", lambda grad, call: grad * 1.02)),
    mutant("backward_key_two_percent", "the key's gradient is 2 % too large", 
          gradient("key", lambda grad, call: grad * 1.02)),
    mutant("backward_value_two_percent", "the value's gradient is 2 % too large",
          gradient("value", lambda grad, call: grad * 1.02)),
    mutant("backward_key_of_previous_row", "the key's gradient goes to another batch row",
          gradient("key", lambda grad, call: grad.roll(1, 0)), "there is one batch row"),
    mutant("backward_key_and_value_swapped", "the gradients of key and value are swapped where their shapes agree",
          Kernel(gradients=lambda gradients, call: gradients if call.key.shape != call.value.shape
                 else {**gradients, "key": gradients["value"], "value": gradients["key"]}), "V and D differ"),
    mutant("backward_softcap_slope_missing", "the slope of the softcap is left out of the backward pass",
          Kernel(slope=lambda slope: 1.0), "there is no softcap"),
    mutant("backward_softcap_slope_unsquared", "the slope of the softcap is 1 - |tanh| instead of 1 - tanh squared",
          Kernel(slope=lambda slope: 1.0 - (1.0 - slope) ** 0.5), "there is no softcap"),
    mutant("backward_query_in_bfloat16", "the query's gradient is accumulated in bfloat16",
          added("query", lambda total, term, columns, call: in_bfloat16(total + term))),
    mutant("backward_key_in_bfloat16", "the key's gradient is accumulated in bfloat16",
          added("key", lambda total, term, columns, call: in_bfloat16(total + term))),
    mutant("backward_scores_of_large_weights", "weights below 1/32 send no gradient to their scores",
          Kernel(grad_scores=lambda p, dp, row_sums, columns, K: torch.where(p < 1 / 32, 0.0, p) * (dp - row_sums)),
          "no weight is below 1/32"),
    mutant("backward_query_stops", "the query gets zeros for a gradient",
          gradient("query", lambda grad, call: torch.zeros_like(grad))),
    mutant("backward_grad_output_of_first_head", "the output gradient of the first head is used for all",
          Kernel(incoming=lambda grad_output, rows: stages.only_seeing_rows(grad_output[:, :1].expand_as(grad_output), rows)),
          "every head has one output gradient"),
)  # fmt: skip
"""The mutants of this family."""
