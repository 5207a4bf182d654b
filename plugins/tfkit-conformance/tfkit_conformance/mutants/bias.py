"""Wrong biases: scaled, at another distance, of another head or row, or without gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, AttentionOutput, DenseBias, DistanceBias, LinearBias

from .kernel import stages
from .kernel.kernel import Kernel
from .kernel.stages import BiasOf, bias_values, of_distance
from .masks import offset_of, standing
from .mutant import of_family
from .softmax import in_bfloat16

mutant = of_family("bias")


def adds(kind: type, added: BiasOf, pulled: BiasOf | None = None) -> Kernel:
    """The kernel with another bias of one kind, and where it is given another gradient."""
    gradients = stages.BIAS_GRADIENTS if pulled is None else {**stages.BIAS_GRADIENTS, kind: pulled}
    return Kernel(biases={**stages.BIASES, kind: added}, bias_gradients=gradients)


def looked_up(index: Callable[[Tensor, int, int], Tensor]) -> Kernel:
    """The kernel that finds a distance's value by another index, from the distance, `low` and the number of values."""

    def added(call: AttentionInputs, distance: Tensor, values: Tensor) -> Tensor:
        return values[:, index(distance, of_distance(call).low, values.shape[1])].transpose(0, 1)

    return adds(DistanceBias, added)


def pulled_of(change: Callable[[Tensor, AttentionInputs], Tensor]) -> Kernel:
    """The kernel whose bias gradient is made from other gradients of the scores."""

    def changed(function: BiasOf) -> BiasOf:
        return lambda call, distance, grad_scores: function(call, distance, change(grad_scores, call))

    return Kernel(bias_gradients={kind: changed(function) for kind, function in stages.BIAS_GRADIENTS.items()})


def bias_gradient(change: Callable[[Tensor, AttentionInputs], Tensor]) -> Kernel:
    return Kernel(
        gradients=lambda gradients, call: (
            {**gradients, "bias": change(gradients["bias"], call)} if "bias" in gradients else gradients
        )
    )


def detached_bias(call: AttentionInputs, options: object) -> AttentionOutput:
    """The bias is cut off from the graph."""
    if call.bias is None:
        return Kernel()(call)
    values = bias_values(call.bias).detach()
    bias = LinearBias(values) if isinstance(call.bias, LinearBias) else replace(call.bias, values=values)
    return Kernel()(replace(call, bias=bias))


def of_first_row(grad_scores: Tensor, call: AttentionInputs) -> Tensor:
    return torch.cat([grad_scores[:1], torch.zeros_like(grad_scores[1:])])


def of_first_head(grad_scores: Tensor, call: AttentionInputs) -> Tensor:
    return torch.cat([grad_scores[:, :1], torch.zeros_like(grad_scores[:, 1:])], 1)


def ignored_again(raw: Tensor, bias: Tensor | float, call: AttentionInputs) -> tuple[Tensor, Tensor | float]:
    return stages.capped_and_biased(raw, 0.0, call)


def twice_from(start: int, function: BiasOf) -> BiasOf:
    """The bias, twice from one key on."""

    def added(call: AttentionInputs, distance: Tensor, values: Tensor) -> Tensor:
        return function(call, distance, values) * (1 + (torch.arange(call.key.shape[2], device=distance.device) >= start))

    return added


def first_of(values: Tensor, axis: int) -> Tensor:
    """The first slice of an axis, counted from the last, for all."""
    return values if values.dim() < -axis else values.narrow(axis, 0, 1).expand_as(values)


def unclamped_gradient(call: AttentionInputs, distance: Tensor, grad_scores: Tensor) -> Tensor:
    index = distance - of_distance(call).low
    inside = (index >= 0) & (index < of_distance(call).values.shape[1])
    return stages.distance_gradient(call, distance, grad_scores * inside[:, None])


def without_last_query(grad_scores: Tensor, call: AttentionInputs) -> Tensor:
    return torch.cat([grad_scores[:, :, :-1], torch.zeros_like(grad_scores[:, :, -1:])], 2)


MUTANTS = (
    mutant("bias_ignored", "the bias is ignored", Kernel(score=ignored_again), "there is no bias"),
    mutant("bias_scaled", "the bias is multiplied by the scale",
          Kernel(score=lambda raw, bias, call: stages.capped_and_biased(raw, bias * call.scale, call)), "there is no bias"),
    mutant("bias_twice_in_later_blocks", "the bias is added once to the first block of keys and twice to later ones",
          Kernel(biases={kind: twice_from(16, add) for kind, add in stages.BIASES.items()}), "K is at most 16"),
    mutant("bias_in_bfloat16", "the bias is rounded to bfloat16",
          Kernel(score=lambda raw, bias, call: stages.capped_and_biased(
              raw, in_bfloat16(bias) if isinstance(bias, Tensor) else bias, call)), "the bias is bfloat16"),
    mutant("bias_offset_ignored", "distances of a position bias are counted from position 0",
          Kernel(bias_positions=lambda call: standing(call, 0)), "the offset is 0"),
    mutant("bias_offset_of_first_row", "distances of a position bias use the first batch row's offset for all",
          Kernel(bias_positions=lambda call: standing(call, offset_of(call)[:1])), "all rows have one offset"),
    mutant("linear_sign", "the slopes of the linear bias have the wrong sign: far keys are preferred",
          adds(LinearBias, lambda call, d, slopes: -stages.linear(call, d, slopes))),
    mutant("linear_future_keys", "keys ahead of the query get a positive linear bias: the distance lacks its absolute value",
          adds(LinearBias, lambda call, d, slopes: slopes[:, None, None] * d[:, None]), "the call is causal"),
    mutant("linear_future_keys_zero", "keys ahead of the query get no linear bias",
          adds(LinearBias, lambda call, d, slopes: slopes[:, None, None] * d.clamp(max=0)[:, None]), "the call is causal"),
    mutant("linear_slopes_shifted", "each head has the slope of the head before",
          adds(LinearBias, lambda call, d, slopes: stages.linear(call, d, slopes.roll(1)))),
    mutant("linear_gradient_sign", "the gradient of the slopes has the wrong sign",
          bias_gradient(lambda grad, call: -grad if isinstance(call.bias, LinearBias) else grad), "the bias is not linear"),
    mutant("distance_low_off_by_one", "distances are counted from low + 1",
          looked_up(lambda d, low, R: (d - low - 1).clamp(0, R - 1))),
    mutant("distance_reversed", "distances are counted from the key to the query",
          looked_up(lambda d, low, R: (-d - low).clamp(0, R - 1))),
    mutant("distance_wraps_above", "distances beyond the upper end wrap around to the lower one",
          looked_up(lambda d, low, R: (d - low).clamp(min=0) % R), "no distance is beyond the upper end"),
    mutant("distance_wraps_below", "distances beyond the lower end count from the upper one",
          looked_up(lambda d, low, R: (d - low).clamp(max=R - 1) % R), "no distance is beyond the lower end"),
    mutant("distance_last_value_unused", "the last value of a distance bias is never reached",
          looked_up(lambda d, low, R: (d - low).clamp(0, max(R - 2, 0))), "no distance reaches the last value"),
    mutant("distance_gradient_not_clamped", "distances beyond the ends send no gradient to the ends' values",
          Kernel(bias_gradients={**stages.BIAS_GRADIENTS, DistanceBias: unclamped_gradient}),
          "no distance is beyond the ends"),
    mutant("dense_of_first_head", "the dense bias of the first head is used for all",
          adds(DenseBias, lambda call, d, values: stages.dense(call, d, first_of(values, -3))), "it is the same for all heads"),
    mutant("dense_of_first_row", "the dense bias of the first batch row is used for all",
          adds(DenseBias, lambda call, d, values: stages.dense(call, d, first_of(values, -4))), "it is the same for all rows"),
    mutant("dense_of_first_query", "the dense bias of the first query is used for all",
          adds(DenseBias, lambda call, d, values: stages.dense(call, d, first_of(values, -2))),
          "it is the same for all queries"),
    mutant("bias_gradient_of_first_row", "the gradient of the bias is that of the first batch row, not the sum over the batch",
          pulled_of(of_first_row), "there is one batch row"),
    mutant("bias_gradient_of_first_head", "only the first head sends a gradient to the bias", pulled_of(of_first_head),
          "there is one head"),
    mutant("bias_gradient_mean_over_batch", "the gradient of the bias is averaged over the batch instead of summed",
          pulled_of(lambda grad_scores, call: grad_scores / grad_scores.shape[0]), "there is one batch row"),
    mutant("bias_gradient_scaled", "the gradient of the bias is multiplied by the scale",
          bias_gradient(lambda grad, call: grad * call.scale)),
    mutant("bias_gradient_of_last_query_missing", "the last query sends no gradient to the bias",
          pulled_of(without_last_query)),
    mutant("bias_gradient_in_bfloat16", "the gradient of the bias is rounded to bfloat16 before it is summed",
          pulled_of(lambda grad_scores, call: in_bfloat16(grad_scores))),
    mutant("bias_gradient_of_hidden_keys", "hidden keys send a gradient to the bias",
          pulled_of(lambda grad_scores, call: grad_scores + 0.01 * (grad_scores == 0)), "no key is hidden"),
    mutant("bias_gradient_zero", "the bias gets zeros for a gradient",
          bias_gradient(lambda grad, call: torch.zeros_like(grad))),
    mutant("bias_gradient_missing", "the bias is cut off from the graph: its gradient is silently absent", detached_bias),
)  # fmt: skip
"""The mutants of this family."""
