"""Read-outs: calls that show exactly which keys each query reads, and from which head.

    forward    nearly equal scores, values one-hot over a chunk of keys, times 2^c for the key/value head (b, g) of code c:
               output[b,h,i,j] > 0 exactly where query i sees key j; the sum over j is 2^c of the head that was read
    backward   output gradients one-hot over a chunk of queries, one query head of each group at a time:
               grad_value[b,g,j,i] > 0 exactly where query i of that head sees key j

Exact in every dtype and at every length: one key of four thousand shows, which no tolerance on an output can see.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, Bias, DenseBias, DistanceBias, LinearBias

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.evaluated import Evaluated, run, run_backward
from ..differences import first_of
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
    found = torch.zeros(case.B, case.H, case.Q, case.K, dtype=torch.float64)
    inputs = _faint(replace(case, gradients=True, bias_gradient=False, lse=False, weights=False), subject.device)
    for start in range(0, case.Q, case.V):
        rows = torch.arange(start, min(start + case.V, case.Q), device=inputs.query.device)
        for member in range(ratio):
            sent = torch.zeros(case.B, case.H, case.Q, case.V, dtype=inputs.query.dtype, device=inputs.query.device)
            sent[:, member::ratio, rows, rows - start] = 1
            given = run_backward(subject, run(subject, inputs, "support"), inputs, sent, "support")["value"]
            found[:, member::ratio, start : start + len(rows)] = given[..., : len(rows)].mT.double().cpu()
    return found


def head_codes(case: Case) -> Tensor:
    """(B,G): a power of two for each batch row and key/value head; neighbours differ."""
    return 2.0 ** ((torch.arange(case.B)[:, None] * case.G + torch.arange(case.G)) % 6)


def compare_visibility(check: str, found: Tensor, visible: Tensor, verb: str) -> None:
    """Raise Violation in words where `found > 0` (B,H,Q,K) is not `visible`."""
    wrong = ((found > 0) != visible) | found.isnan()
    if not bool(wrong.any()):
        return
    b, h, i, j = first_of(wrong)
    if bool(found[b, h, i, j].isnan()):
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
