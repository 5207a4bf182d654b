"""The layers of checks that every case passes in order; the first that fails is reported.

    contract    shape, dtype, device, aliasing, inputs unwritten, NaN, gradients present, nothing random, repeatable
    support     which key each query reads, forward and backward, exactly (`tfkit_conformance.suite.layers`)
    scores      the weights themselves, read out by one-hot values, within the bound
    output      output, log-sum-exp and weights within the bound
    gradients   query, key, value and bias gradients within the bound

A wrong mask is reported as "query row 3 of batch row 1 sees key 17; it must not", and not as 0.0031 > 0.0029.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, Bias, DenseBias, DistanceBias, LinearBias, Mask

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.compare import leaves_of
from ..attention.evaluated import Call, Evaluated, run, run_backward
from ..differences import at_element, error_ratio, first_of, where_wrong, worst_of
from ..finding import Violation

FAINT = 2.0**-10
"""Queries and biases are scaled by this, so that no weight underflows: softmax is nearly even over what is visible."""


def read_forward(evaluated: Evaluated) -> Tensor:
    """What each query read: (B,H,Q,K) float64, a power of two times its weights."""
    subject, case = evaluated.subject, _wide(evaluated.subject, evaluated.case, evaluated.case.K)
    inputs = _faint(replace(case, gradients=False, bias_gradient=False, lse=False, weights=False), subject.device)
    codes = head_codes(case).to(inputs.value)
    read = []
    for start in range(0, case.K, case.V):
        chunk = torch.zeros(case.K, case.V, dtype=inputs.value.dtype, device=inputs.value.device)
        rows = torch.arange(start, min(start + case.V, case.K), device=chunk.device)
        chunk[rows, rows - start] = 1
        output = run(subject, replace(inputs, value=(codes[:, :, None, None] * chunk).contiguous()), "support").output
        read.append(output[..., : len(rows)].double().cpu())
    return torch.cat(read, -1)


def read_backward(evaluated: Evaluated) -> Tensor:
    """The gradient of every value by every query: (B,H,Q,K) float64."""
    subject, case = evaluated.subject, _wide(evaluated.subject, evaluated.case, evaluated.case.Q)
    ratio = case.H // case.G
    slopes = torch.zeros(case.B, case.H, case.Q, case.K, dtype=torch.float64)
    inputs = _faint(replace(case, gradients=True, bias_gradient=False, lse=False, weights=False), subject.device)
    for start in range(0, case.Q, case.V):
        rows = torch.arange(start, min(start + case.V, case.Q), device=inputs.query.device)
        for member in range(ratio):
            sent = torch.zeros(case.B, case.H, case.Q, case.V, dtype=inputs.query.dtype, device=inputs.query.device)
            sent[:, member::ratio, rows, rows - start] = 1
            value_grad = run_backward(subject, run(subject, inputs, "support"), inputs, sent, "support")["value"]
            slopes[:, member::ratio, start : start + len(rows)] = value_grad[..., : len(rows)].mT.double().cpu()
    return slopes


def head_codes(case: Case) -> Tensor:
    """(B,G): a power of two for each batch row and key/value head; neighbours differ."""
    return 2.0 ** ((torch.arange(case.B)[:, None] * case.G + torch.arange(case.G)) % 6)


def compare_visibility(check: str, read: Tensor, visible: Tensor, verb: str) -> None:
    """Raise Violation in words where `found > 0` (B,H,Q,K) is not `visible`."""
    wrong = ((read > 0) != visible) | read.isnan()
    if not bool(wrong.any()):
        return
    b, h, i, j = first_of(wrong)
    if bool(read[b, h, i, j].isnan()):
        what = f"is NaN at key {j}"
    elif bool(visible[b, h, i, j]):
        what = f"does not {verb} key {j}; it must"
    else:
        does, space, rest = verb.partition(" ")
        what = f"{does}s{space}{rest} key {j}; it must not"
    many = int(wrong.sum())
    more = f" ({many} of {wrong.numel()} pairs are wrong)" if many > 1 else ""
    raise Violation(check, f"query row {i} of batch row {b}, head {h}, {what}{more}", tensor="visible", index=(b, h, i, j))


def _wide(subject: BackendUnderTest, case: Case, length: int) -> Case:
    """The case with values as wide as its declaration allows and the read-out can use, so that it needs few calls."""
    can = subject.capabilities
    allowed = can.head_dim
    assert allowed is not None
    fitting = [dim for dim in (8, 16, 32, 64, 128) if dim in allowed and dim <= max(8, 2 * length)]
    if not fitting:
        return case
    wide = replace(case, V=fitting[-1], D=case.D if can.value_dim_differs else fitting[-1])
    return wide if wide.V > case.V and subject.accepts(wide.request(subject.device)) else case


def _faint(case: Case, device: str) -> AttentionInputs:
    inputs = replace(case, regime="normal").inputs(device)
    query = (inputs.query.detach() * FAINT).requires_grad_(case.gradients)
    return replace(inputs, query=query, bias=None if inputs.bias is None else _faint_bias(inputs.bias))


def _faint_bias(bias: Bias) -> Bias:
    if isinstance(bias, LinearBias):
        return LinearBias(bias.slopes * FAINT)
    if isinstance(bias, DistanceBias):
        return DistanceBias(bias.values * FAINT, bias.low)
    return DenseBias(bias.values * FAINT)


@dataclass(frozen=True)
class Layer:
    """`evaluate` raises Violation or Inconclusive, and gives the largest error as a share of its bound, None where it is
    exact."""

    name: str
    rule: str
    summary: str
    evaluate: Callable[[Evaluated], float | None]


def contract(evaluated: Evaluated) -> None:
    """Rules A1, A5, A7 and A10 as far as one call shows them."""
    case, inputs = evaluated.case, evaluated.inputs
    tensors = [*leaves_of(inputs).values(), *mask_tensors(inputs.mask), evaluated.grad_output]
    before = [tensor.detach().clone() for tensor in tensors]
    state, settings = torch.get_rng_state(), process_settings()
    answer = evaluated.output
    _check_unwritten(tensors, before, "")
    _check_settings(settings, "")
    _check_tensor("output", answer.output, (case.B, case.H, case.Q, case.V), case.torch_dtype, inputs.query.device)
    if case.lse:
        if answer.lse is None:
            raise Violation("contract", "returned no log-sum-exp although it was requested and is declared")
        _check_tensor("lse", answer.lse, (case.B, case.H, case.Q), torch.float32, inputs.query.device, infinite=True)
    if case.weights:
        if answer.weights is None:
            raise Violation("contract", "returned no weights although they were requested and are declared")
        _check_tensor("weights", answer.weights, (case.B, case.H, case.Q, case.K), case.torch_dtype, inputs.query.device)
    owned = {tensor.untyped_storage().data_ptr() for tensor in leaves_of(inputs).values()}
    if answer.output.untyped_storage().data_ptr() in owned:
        raise Violation("contract", "the output shares memory with an input; writing to one would change the other")
    if case.gradients or case.bias_gradient:
        gradients = evaluated.gradients
        for name, leaf in leaves_of(inputs).items():
            if leaf.requires_grad:
                _check_tensor(f"gradient of {name}", gradients[name], tuple(leaf.shape), leaf.dtype, leaf.device)
        _check_unwritten(tensors, before, " in the backward pass")
        _check_settings(settings, " in the backward pass")
    if not torch.equal(torch.get_rng_state(), state):
        raise Violation("contract", "drew random numbers although dropout is 0")
    first = answer.output.detach().clone()
    again = run(evaluated.subject, inputs).output
    if (
        not torch.equal(answer.output, first)
        or again.untyped_storage().data_ptr() == answer.output.untyped_storage().data_ptr()
    ):
        raise Violation("contract", "the second call wrote into the output of the first")
    if not torch.equal(again, first):
        worst = float((again.detach().double() - first.double()).abs().max())
        raise Violation("contract", f"the same call gave a different output the second time, by up to {worst:.3g}")


def support(evaluated: Evaluated) -> None:
    """A4 and A1: which keys each query sees, and from which head, in the forward pass."""
    read, case = read_forward(evaluated), evaluated.case
    compare_visibility("support", read, evaluated.visible, "see")
    total = read.sum(-1)
    codes = head_codes(case).repeat_interleave(case.H // case.G, 1)[..., None].expand(total.shape)
    wrong = evaluated.visible.any(-1) & ((total / codes - 1).abs() > 0.25)
    if bool(wrong.any()):
        b, h, i = first_of(wrong)
        group = h // (case.H // case.G)
        raise Violation(
            "support",
            f"query head {h} of batch row {b} does not read key/value head {group} of its own batch row (row {i})",
            tensor="output", index=(b, h, i), got=float(total[b, h, i]), want=float(codes[b, h, i]),
        )  # fmt: skip


def support_of_gradients(evaluated: Evaluated) -> None:
    """A4 in the backward pass, which has a mask of its own."""
    if evaluated.case.gradients:
        compare_visibility("support of gradients", read_backward(evaluated), evaluated.visible, "send gradient to")


def scores(evaluated: Evaluated) -> float | None:
    """The weights read out: one-hot values over a chunk of keys, the queries and keys of the case."""
    case = evaluated.case
    start = (case.seed % max(1, (case.K - 1) // case.V + 1)) * case.V
    chunk = torch.zeros(case.K, case.V, dtype=case.torch_dtype, device=evaluated.inputs.value.device)
    rows = torch.arange(start, min(start + case.V, case.K), device=chunk.device)
    chunk[rows, rows - start] = 1
    value = chunk.expand(case.B, case.G, -1, -1).contiguous()
    plain = replace(case, gradients=False, bias_gradient=False, lse=False, weights=False).inputs(evaluated.subject.device)
    call = Call(evaluated.subject, replace(plain, value=value), evaluated.grad_output)
    return within("scores", "weights", call.output.output, call.reference.output, call.bounds.output)


def output(evaluated: Evaluated) -> float | None:
    """The output, and what else was asked for."""
    answer, wanted, bound = evaluated.output, evaluated.reference, evaluated.bounds
    worst = within("output", "output", answer.output, wanted.output, bound.output)
    if answer.lse is not None and evaluated.case.lse:
        worst = max(worst, within("output", "lse", answer.lse, wanted.lse, bound.lse))
    if answer.weights is not None and evaluated.case.weights:
        worst = max(worst, within("output", "weights", answer.weights, wanted.weights, bound.weights))
    return worst


def gradients(evaluated: Evaluated) -> float | None:
    """Every gradient that was asked for."""
    if not (evaluated.case.gradients or evaluated.case.bias_gradient):
        return None
    got, wanted, bound = evaluated.gradients, evaluated.reference.gradients, evaluated.bounds.gradients
    return max(within("gradients", f"gradient of {name}", got[name], wanted[name], bound[name]) for name in got)


LAYERS = (
    Layer("contract", "A1", "shapes, dtypes, no aliasing, no writing, repeatable, gradients arrive", contract),
    Layer("support", "A4", "which keys and which head each query reads, exactly", support),
    Layer("support of gradients", "A4", "which queries send a gradient to which value, exactly", support_of_gradients),
    Layer("scores", "A2", "every attention weight, read out, within the error bound", scores),
    Layer("output", "A2", "output, log-sum-exp and weights within the error bound", output),
    Layer("gradients", "A10", "every gradient within the error bound", gradients),
)


def within(check: str, tensor: str, got: Tensor, want: Tensor, bound: Tensor) -> float:
    """The largest |got - want| / bound. Raises Violation with the worst element where it is above 1."""
    if got.shape != want.shape:
        raise Violation(check, f"{tensor} has shape {tuple(got.shape)}, expected {tuple(want.shape)}", tensor=tensor)
    ratio = error_ratio(got, want, bound)
    worst, index = worst_of(ratio)
    if worst <= 1:
        return worst
    g, w, b = float(got[index].detach()), float(want[index]), float(bound[index])
    place = ", ".join(map(str, index))
    message = (
        f"{tensor}[{place}] is {g:.6g}, the reference {w:.6g}: off by {abs(g - w):.3g}, {worst:.3g} times the allowed {b:.3g}"
    )
    where = where_wrong(tensor, ratio > 1)
    message += f"; all errors are in {where}" if where else ""
    raise at_element(check, message, tensor, index, got, want, bound)


def _check_tensor(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, infinite: bool = False
) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.device.type != device.type:
        got, want = (
            f"{tuple(s)} {d} on {p}" for s, d, p in ((tensor.shape, tensor.dtype, tensor.device), (shape, dtype, device))
        )
        raise Violation("contract", f"{name} is {got}, expected {want}", tensor=name)
    bad = tensor.isnan() if infinite else ~tensor.isfinite()
    if bool(bad.any()):
        index = first_of(bad)
        place = ", ".join(map(str, index))
        raise Violation("contract", f"{name}[{place}] is {float(tensor[index].detach())}", tensor=name, index=index)


def _check_unwritten(tensors: list[Tensor], before: list[Tensor], when: str) -> None:
    """Before the backward pass too: autograd would say of a written input only that something was modified in place."""
    for tensor, kept in zip(tensors, before, strict=True):
        if not torch.equal(tensor, kept):
            raise Violation("contract", f"an input {tuple(tensor.shape)} {tensor.dtype} was written to{when}")


ENVIRONMENT = "variables of the environment"


def process_settings(environment: bool = True) -> dict[str, Any]:
    """torch's settings of the process and of this thread, by name. To read the variables of the environment takes longer than
    all the rest."""
    cuda = torch.backends.cuda
    return {
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "the number of threads": torch.get_num_threads(),
        "the precision of float32 products": torch.get_float32_matmul_precision(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the gradient mode": torch.is_grad_enabled(),
        "detection of anomalies": torch.is_anomaly_enabled(),
        "flushing of subnormal numbers": _flushes_subnormal(),
        "the kernels of scaled_dot_product_attention": [
            enabled()  # type: ignore[no-untyped-call]
            for enabled in (
                cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled, cuda.cudnn_sdp_enabled,
            )
        ],
        "oneDNN": torch._C._get_mkldnn_enabled(),
        "cuDNN": torch.backends.cudnn.enabled,
        "autocast": torch.is_autocast_enabled("cpu"),
        "TF32 of cuDNN": torch.backends.cudnn.allow_tf32,
        "cuDNN's choice by time": torch.backends.cudnn.benchmark,
        "cuDNN's deterministic kernels": torch.backends.cudnn.deterministic,
        "Python's garbage collector": gc.isenabled(),
        **({ENVIRONMENT: _variables()} if environment else {}),
        "the working directory": os.getcwd(),
        "whether all warnings are ignored": ("ignore", None, Warning, None, 0) in warnings.filters,
    }  # fmt: skip


def _variables() -> dict[str, str]:
    """All but those that compilers set."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "TRITON"))}


def _flushes_subnormal() -> bool:
    return float(torch.tensor(2.0**-149) * 1.0) == 0.0


def _check_settings(before: dict[str, object], when: str) -> None:
    if changed := changed_setting(before):
        raise Violation("contract", f"changed {changed}{when}, and left it so")


def changed_setting(before: dict[str, Any]) -> str | None:
    """A setting of the process that is another one than before, in words."""
    for name, value in process_settings(ENVIRONMENT in before).items():
        old = before[name]
        if isinstance(value, dict) and value != old:
            wrong = sorted(one for one in {*value, *old} if value.get(one) != old.get(one))
            return f"{name} ({', '.join(wrong)})"
        if value != old:
            return f"{name} of the process from {old} to {value}"
    return None


def mask_tensors(mask: Mask) -> list[Tensor]:
    """The tensors of a mask."""
    fields = (mask.offset, mask.key_lengths, mask.query_lengths, mask.key_visible, mask.query_segments, mask.key_segments,
              mask.visible)  # fmt: skip
    return [tensor for tensor in fields if isinstance(tensor, Tensor)]
