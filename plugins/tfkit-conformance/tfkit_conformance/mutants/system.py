"""Backends with side effects: they write into inputs, keep state, alias memory, or answer what they should refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tfkit import BackendRefused, Diagnostic
from tfkit.inspection import SCORE_SETTINGS
from tfkit.plugin import AttentionInputs, AttentionOutput

from ..attention.reference import reference
from .kernel.kernel import CAPABILITIES, Kernel
from .mutant import Attend, Mutant, of_family

mutant = of_family("system")


def without(**declared: Any) -> Any:
    """The kernel's capabilities with less declared."""
    return CAPABILITIES.model_copy(update=declared)


def output_as(change: Callable[[Tensor, AttentionInputs], Tensor]) -> Attend:
    """The kernel, its output changed on the way out."""

    def attend(call: AttentionInputs, options: object) -> AttentionOutput:
        answer = Kernel()(call)
        return replace(answer, output=change(answer.output, call))

    return attend


def ignoring(**fields: Any) -> Attend:
    """The kernel, which never looks at some fields of the call."""
    return lambda call, options: Kernel()(replace(call, **fields))


def scales_query_in_place(call: AttentionInputs, options: object) -> AttentionOutput:
    with torch.no_grad():
        call.query.detach().mul_(call.scale)
    return Kernel()(replace(call, scale=1.0))


def zeroes_hidden_values(call: AttentionInputs, options: object) -> AttentionOutput:
    """Values beyond the key lengths are zeroed in the caller's memory."""
    if call.mask.key_lengths is not None:
        beyond = torch.arange(call.value.shape[2], device=call.value.device) >= call.mask.key_lengths[:, None]
        call.value.detach().masked_fill_(beyond[:, None, :, None], 0.0)
    return Kernel()(call)


def output_in_query(call: AttentionInputs, options: object) -> AttentionOutput:
    """The output is written where the query stood."""
    answer = Kernel()(call)
    if call.query.shape != answer.output.shape or answer.output.requires_grad:
        return answer
    return replace(answer, output=call.query.detach().copy_(answer.output))


def one_key_gives_value(call: AttentionInputs, options: object) -> AttentionOutput:
    """With one key and no mask the value itself is given out."""
    B, H, Q, _ = call.query.shape
    if call.key.shape[2] != 1 or call.mask.terms() or call.dropout or call.return_weights or call.return_lse:
        return Kernel()(call)
    repeated = call.value if call.value.shape[1] == H else call.value.repeat_interleave(H // call.value.shape[1], 1)
    return AttentionOutput(repeated.expand(B, H, Q, -1))


def remembers_mask() -> Attend:
    """The mask is kept by its shape and terms."""
    seen: dict[Any, Tensor] = {}

    def see(visible: Tensor, call: AttentionInputs) -> Tensor:
        return seen.setdefault((tuple(visible.shape), call.mask.terms(), visible.device), visible.clone())

    return Kernel(see=see)


def remembers_bias() -> Attend:
    """The first bias of each shape is kept."""
    seen: dict[Any, Any] = {}

    def attend(call: AttentionInputs, options: object) -> AttentionOutput:
        if call.bias is None or call.query.requires_grad:
            return Kernel()(call)
        key = (type(call.bias), tuple(call.query.shape), tuple(call.key.shape), call.query.device)
        return Kernel()(replace(call, bias=seen.setdefault(key, call.bias)))

    return attend


def remembers_scale() -> Attend:
    """The scale of the first call is used for all, as a constant compiled in."""
    seen: list[float] = []

    def scale(call: AttentionInputs) -> float:
        seen.append(call.scale)
        return seen[0]

    return Kernel(scale=scale)


def reuses_output() -> Attend:
    """The output is in a workspace that the next call of the same shape overwrites."""
    workspaces: dict[Any, Tensor] = {}

    def attend(call: AttentionInputs, options: object) -> AttentionOutput:
        answer = Kernel()(call)
        if answer.output.requires_grad:
            return answer
        key = (tuple(answer.output.shape), answer.output.dtype, answer.output.device)
        return replace(answer, output=workspaces.setdefault(key, torch.empty_like(answer.output)).copy_(answer.output))

    return attend


def wavers() -> Attend:
    """Every third call is off by a thousandth."""
    calls = count(1)
    return output_as(lambda output, call: output * 1.001 if next(calls) % 3 == 0 else output)


class _Looked(torch.autograd.Function):
    """Attention by asking the reference."""

    @staticmethod
    def forward(ctx: Any, call: AttentionInputs, *leaves: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(*leaves)
        return reference(call).output.to(call.query)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        gradients = reference(ctx.call, grad_output).gradients
        return None, *(
            gradients[name].to(leaf) for name, leaf in zip(("query", "key", "value"), ctx.saved_tensors, strict=True)
        )


def asks_the_reference(call: AttentionInputs, options: object) -> AttentionOutput:
    if call.bias is not None or call.dropout or call.return_lse or call.return_weights:
        return Kernel()(call)
    return AttentionOutput(_Looked.apply(call, call.query, call.key, call.value))  # type: ignore[no-untyped-call]


def refuses_right_windows(call: AttentionInputs, options: object) -> AttentionOutput:
    if call.mask.window is not None and call.mask.window[1] not in (None, 0):
        raise BackendRefused(Diagnostic("TFK060", "no window looks ahead"))
    return Kernel()(call)


def raises_in_backward(call: AttentionInputs, options: object) -> AttentionOutput:
    def refuse(gradients: dict[str, Tensor], call: AttentionInputs) -> dict[str, Tensor]:
        if call.query.shape[1] != call.key.shape[1]:
            raise NotImplementedError("no gradients of grouped heads")
        return gradients

    return Kernel(gradients=refuse)(call)


def weights_with_lse_only(call: AttentionInputs, options: object) -> AttentionOutput:
    answer = Kernel()(call)
    return replace(answer, lse=None) if call.return_weights else answer


def far_keys_nan(output: Tensor, call: AttentionInputs) -> Tensor:
    return output * torch.nan if call.key.shape[2] > 64 else output


def first_head_where_grouped(tensor: Tensor, heads: int) -> Tensor:
    return tensor if tensor.shape[1] == heads else tensor[:, :1].expand(-1, heads, -1, -1)


MUTANTS = (
    mutant("scales_query_in_place", "it writes into its inputs: the query is scaled in place",
          scales_query_in_place, "the scale is 1"),
    mutant("zeroes_hidden_values", "it writes into its inputs: values beyond the key lengths are set to zero",
          zeroes_hidden_values,
          "there are no key lengths"),
    mutant("output_in_query", "it writes the output into the query's memory", output_in_query, "gradients are asked for"),
    mutant("one_key_gives_value", "with one key its output is a view of the value",
          one_key_gives_value, "there are several keys"),
    mutant("output_in_float32", "its output is float32 whatever the query's dtype",
          output_as(lambda output, call: output.float()),
          "the query is float32"),
    mutant("output_heads_last", "its output has its heads behind its queries",
          output_as(lambda output, call: output.transpose(1, 2)),
          "H = Q = 1"),
    mutant("output_without_singletons", "its output lacks axes of length 1", output_as(lambda output, call: output.squeeze()),
          "no axis has length 1"),
    mutant("output_detached", "its output does not require gradients", output_as(lambda output, call: output.detach()),
          "no gradients are asked for"),
    mutant("output_nan_for_long_keys", "its output is NaN beyond 64 keys", output_as(far_keys_nan), "K is at most 64"),
    mutant("lse_missing_beside_weights", "it gives no log-sum-exp where weights are asked for too", weights_with_lse_only,
          "only one of them is asked for"),
    Mutant("remembers_mask", "system", "it remembers: the first mask of each shape is used again", remembers_mask),
    Mutant("remembers_bias", "system", "it remembers: the first bias of each shape is used again", remembers_bias,
                equivalent_when="gradients are asked for"),
    Mutant("remembers_scale", "system", "it remembers: the scale of the first call is used for all", remembers_scale,
                equivalent_when="all calls have one scale"),
    Mutant("reuses_output", "system", "the next call overwrites its last output", reuses_output,
                equivalent_when="gradients are asked for"),
    Mutant("wavers", "system", "every third call is off by a thousandth", wavers),
    mutant("asks_the_reference", "it calls the reference that checks it", asks_the_reference),
    mutant("refuses_right_windows", "it refuses windows that look ahead, which it declares", refuses_right_windows),
    mutant("raises_in_backward", "its backward pass raises for grouped heads, which it declares", raises_in_backward),
    *(
        mutant(f"undeclared_{name}_ignored", f"it answers a {name}, which it does not declare, as if there were none",
              ignoring(**{name: None}), capabilities=without(**{name: False}))
        for name in [setting.name for setting in SCORE_SETTINGS]
    ),
    mutant("undeclared_dropout_ignored", "it answers dropout, which it does not declare, as if there were none",
          ignoring(dropout=0.0), capabilities=without(dropout=False)),
    mutant("undeclared_score_ignored", "it answers another score function, which it does not declare, with the dot product",
          ignoring(score=None)),
    mutant("undeclared_bias_ignored", "it answers a bias, which it does not declare, as if there were none",
          ignoring(bias=None), capabilities=without(bias_kinds=frozenset(), bias_gradient=frozenset())),
    mutant("undeclared_segments_ignored", "it answers segments, which it does not declare, as if there were none",
          lambda call, options: Kernel()(replace(call, mask=replace(call.mask, query_segments=None, key_segments=None))),
          capabilities=without(mask_terms=CAPABILITIES.mask_terms - {"segments"})),
    mutant("undeclared_groups_read_first_heads", "it answers grouped heads, which it does not declare, with the first key head",
          Kernel(read_keys=first_head_where_grouped),
          capabilities=without(grouped_queries=False)),
)  # fmt: skip
"""The mutants of this family."""
