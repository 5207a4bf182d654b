"""Errors in rows that see no key: each part of rule A5 broken."""

from __future__ import annotations

from dataclasses import replace

import torch

from tfkit.plugin import AttentionInputs, AttentionOutput

from .kernel import stages
from .kernel.kernel import Kernel
from .mutant import of_family

mutant = of_family("fully masked rows")
SEEING = "every query sees a key"


def uniform_weights(call: AttentionInputs, options: object) -> AttentionOutput:
    """Fully masked rows report weights of 1/K."""
    answer = Kernel()(call)
    if answer.weights is None:
        return answer
    masked = answer.weights.sum(-1, keepdim=True) == 0
    return replace(answer, weights=torch.where(masked, 1.0 / call.key.shape[2], answer.weights))


def opened_rows(call: AttentionInputs, options: object) -> AttentionOutput:
    """Fully masked rows are shown every key for the kernel's sake, and only their output is taken back."""
    answer = Kernel()(replace(call, return_lse=True))
    masked = answer.lse.isinf()[..., None] if answer.lse is not None else torch.zeros_like(answer.output)
    mean = stages.read_heads(call.value, call.query.shape[1]).mean(2, keepdim=True)
    return replace(answer, output=answer.output + masked * (mean - mean.detach()), lse=answer.lse if call.return_lse else None)


MUTANTS = (
    mutant("masked_row_mean_of_values", "a query that sees no key gets the mean of all values",
          Kernel(masked=lambda output, rows, value: torch.where(rows, output, value.mean(2, keepdim=True))), SEEING),
    mutant("masked_row_first_value", "a query that sees no key gets the first value",
          Kernel(masked=lambda output, rows, value: torch.where(rows, output, value[:, :, :1])), SEEING),
    mutant("masked_row_nan", "a query that sees no key gets NaN",
          Kernel(masked=lambda output, rows, value: torch.where(rows, output, torch.nan)), SEEING),
    mutant("masked_row_keeps_previous", "a query that sees no key gets the output of the query before it",
          Kernel(masked=lambda output, rows, value: torch.where(rows, output, output.roll(1, 2))), SEEING),
    mutant("masked_row_lse_zero", "the log-sum-exp of a query that sees no key is 0",
          Kernel(report=lambda lse, total: torch.where(total > 0, lse, 0.0)), SEEING),
    mutant("masked_row_lse_plus_infinity", "the log-sum-exp of a query that sees no key is plus infinity",
          Kernel(report=lambda lse, total: lse.abs().where(lse.isinf(), lse)), SEEING),
    mutant("masked_row_uniform_weights", "a query that sees no key reports equal weights instead of none",
          uniform_weights, SEEING),
    mutant("masked_row_gradient_passes", "a query that sees no key gives zero, but sends its gradient to every value",
          opened_rows, SEEING),
    mutant("masked_row_gradient_nan", "the backward pass of a query that sees no key gives NaN",
          Kernel(incoming=lambda grad_output, rows: torch.where(rows, grad_output, torch.nan)), SEEING),
    mutant("masked_row_gradient_times_zero", "the gradient of a query that sees no key is multiplied by zero, not replaced",
          Kernel(incoming=lambda grad_output, rows: grad_output * rows), "every incoming gradient is finite"),
)  # fmt: skip
"""The mutants of this family."""
