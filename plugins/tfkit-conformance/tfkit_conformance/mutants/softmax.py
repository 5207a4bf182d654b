"""Errors in scores and softmax: scale, softcap, maxima, sums from block to block, the returned log-sum-exp."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, AttentionOutput, Mask

from .kernel.kernel import Kernel
from .mutant import of_family

mutant = of_family("softmax")
ONE_BLOCK = "all keys are in one block of 16"


def in_bfloat16(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().to(tensor.dtype)


def capped_after_bias(raw: Tensor, bias: Tensor | float, call: AttentionInputs) -> tuple[Tensor, Tensor | float]:
    if call.softcap is None:
        return raw + bias, 1.0
    bent = torch.tanh((raw + bias) / call.softcap)
    return call.softcap * bent, 1.0 - bent * bent


def capped_before_scale(raw: Tensor, bias: Tensor | float, call: AttentionInputs) -> tuple[Tensor, Tensor | float]:
    if call.softcap is None:
        return raw + bias, 1.0
    bent = torch.tanh(raw / call.scale / call.softcap)
    return call.scale * call.softcap * bent + bias, 1.0 - bent * bent


def clipped(raw: Tensor, bias: Tensor | float, call: AttentionInputs) -> tuple[Tensor, Tensor | float]:
    if call.softcap is None:
        return raw + bias, 1.0
    return raw.clamp(-call.softcap, call.softcap) + bias, (raw.abs() < call.softcap).to(raw.dtype)


def always_capped(raw: Tensor, bias: Tensor | float, call: AttentionInputs) -> tuple[Tensor, Tensor | float]:
    softcap = call.softcap or 50.0
    bent = torch.tanh(raw / softcap)
    return softcap * bent + bias, 1.0 - bent * bent


def over_all_keys(call: AttentionInputs, options: object) -> AttentionOutput:
    """The output over the visible keys, divided by the sum over all keys."""
    answer = Kernel()(replace(call, return_lse=True))
    seen = answer.lse
    everything = Kernel()(replace(call, mask=Mask(offset=call.mask.offset), return_lse=True)).lse
    if seen is None or everything is None:
        return answer
    share = torch.exp(seen - everything)[..., None].to(answer.output.dtype)
    return replace(answer, output=answer.output * share, lse=everything if call.return_lse else None)


def lse_of(change: dict[str, None]) -> object:
    """The kernel, handing out the log-sum-exp of another call."""

    def attend(call: AttentionInputs, options: object) -> AttentionOutput:
        answer = Kernel()(call)
        return replace(answer, lse=Kernel()(replace(call, **change)).lse)  # type: ignore[arg-type]

    return attend


def lse_in_dtype_of_query(call: AttentionInputs, options: object) -> AttentionOutput:
    answer = Kernel()(call)
    return replace(answer, lse=None if answer.lse is None else answer.lse.to(call.query.dtype))


def weights_unnormalised(call: AttentionInputs, options: object) -> AttentionOutput:
    answer = Kernel()(call)
    if answer.weights is None:
        return answer
    return replace(answer, weights=answer.weights / answer.weights.amax(-1, keepdim=True).clamp(min=2.0**-20))


MUTANTS = (
    mutant("scale_one_over_d", "the scale is 1/D instead of 1/sqrt(D)", Kernel(scale=lambda call: 1.0 / call.query.shape[3]),
          "the call's scale is 1/D"),
    mutant("scale_one_percent", "the scale is 1 % too large", Kernel(scale=lambda call: call.scale * 1.01)),
    mutant("scale_of_d_plus_one", "the scale is 1/sqrt(D + 1)", Kernel(scale=lambda call: (call.query.shape[3] + 1) ** -0.5)),
    mutant("scale_of_value_dim", "the scale is 1/sqrt of the value dim", Kernel(scale=lambda call: call.value.shape[3] ** -0.5),
          "V = D and the call's scale is 1/sqrt(D)"),
    mutant("scale_of_its_own", "the call's scale is ignored: always 1/sqrt(D)",
          Kernel(scale=lambda call: call.query.shape[3] ** -0.5),
          "the call's scale is 1/sqrt(D)"),
    mutant("scale_in_bfloat16", "the scale is rounded to bfloat16",
          Kernel(scale=lambda call: float(torch.tensor(call.scale).bfloat16())), "the scale is a power of 2"),
    mutant("scores_without_maximum", "exponentials are taken without subtracting the row's maximum",
          Kernel(highest=lambda so_far, scores: torch.zeros_like(so_far)), "no score is beyond 88"),
    mutant("output_not_rescaled", "the output is not rescaled when a later block raises the maximum",
          Kernel(fade=lambda total, output, factor: (total * factor, output)), ONE_BLOCK),
    mutant("sum_not_rescaled", "the sum of exponentials is not rescaled when a later block raises the maximum",
          Kernel(fade=lambda total, output, factor: (total, output * factor)), ONE_BLOCK),
    mutant("split_merged_unweighted", "the parts of a split are added without weighing them by their maxima",
          Kernel(split=2, merge=lambda factor: (factor > 0).to(factor.dtype)), "both parts have one maximum"),
    mutant("split_loses_last_part", "of the parts of a split a later one is lost where an earlier one has the maximum",
          Kernel(split=2, merge=lambda factor: (factor == 1).to(factor.dtype))),
    mutant("sum_over_all_keys", "the weights are normalised over all keys, hidden ones included",
          over_all_keys, "no key is hidden"),
    mutant("output_in_bfloat16", "the output is accumulated in bfloat16",
          Kernel(keep=lambda total, output: (total, in_bfloat16(output)))),
    mutant("sum_in_bfloat16", "the sum of exponentials is accumulated in bfloat16",
          Kernel(keep=lambda total, output: (in_bfloat16(total), output))),
    mutant("scores_in_bfloat16", "scores are rounded to bfloat16 while the accumulation type is declared",
          Kernel(score=lambda raw, bias, call: (in_bfloat16(raw + bias), 1.0)), "never"),
    mutant("softcap_ignored", "the softcap is ignored",
          Kernel(score=lambda raw, bias, call: (raw + bias, 1.0)), "there is no softcap"),
    mutant("softcap_after_bias", "the softcap is applied after the bias is added", Kernel(score=capped_after_bias),
          "there is no softcap, or no bias"),
    mutant("softcap_before_scale", "the softcap is applied before the scale", Kernel(score=capped_before_scale),
          "there is no softcap"),
    mutant("softcap_clips", "scores are cut off at the softcap instead of bent", Kernel(score=clipped), "there is no softcap"),
    mutant("softcap_left_on", "a softcap of 50 is applied where none is asked for", Kernel(score=always_capped),
          "scores are small beside 50"),
    mutant("lse_base_two", "the log-sum-exp is a logarithm of base 2", Kernel(report=lambda lse, total: lse / math.log(2.0))),
    mutant("lse_without_maximum", "the log-sum-exp leaves out the maximum", Kernel(report=lambda lse, total: torch.log(total))),
    mutant("lse_without_bias", "the log-sum-exp is taken before the bias is added", lse_of({"bias": None}), "there is no bias"),
    mutant("lse_without_softcap", "the log-sum-exp is taken of scores without their softcap", lse_of({"softcap": None}),
          "there is no softcap"),
    mutant("lse_in_query_dtype", "the log-sum-exp is given in the query's dtype instead of float32", lse_in_dtype_of_query,
          "the query is float32"),
    mutant("weights_unnormalised", "the returned weights are divided by their maximum, not by their sum",
          weights_unnormalised),
)  # fmt: skip
"""The mutants of this family."""
