"""`fused.atomic`: the backward in one kernel against the float64 reference, and who gets it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import tfkit_fused
import torch
from where import DEVICE, runs

from tfkit.inspection import check_request
from tfkit.plugin import AttentionRequest
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.compare import error_ratios

OPTIONS = tfkit_fused.FusedOptions(tile_queries=16, tile_keys=32)
FULL = Case(
    B=2, H=4, G=2, Q=37, K=53, D=24, V=40, gradients=True, offset=(3, -5), causal=True, key_lengths=(50, 20),
    query_lengths=(37, 30),
)  # fmt: skip
TERMS = {
    "plain": {"causal": False, "offset": None, "key_lengths": None, "query_lengths": None},
    "padded": {}, "window": {"window": (9, 4), "causal": False}, "segments": {"segments": 3}, "keys": {"key_visible": "coins"},
    "visible": {"visible": "BHQK"}, "softcap": {"softcap": 2.0}, "one group": {"G": 1}, "blind": {"offset": -60},
    "linear": {"bias": "linear", "bias_gradient": True}, "distance": {"bias": "distance", "bias_gradient": True},
    "dense": {"bias": "dense", "bias_gradient": True, "bias_axes": "HQK"},
}  # fmt: skip


@runs
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("terms", TERMS)
def test_every_term_holds_in_one_kernel(terms, dtype):
    from tfkit_fused.attend import attend_atomic

    case = replace(FULL, dtype=dtype, **TERMS[terms])
    numerics = tfkit_fused.ATOMIC.capabilities.numerics
    found = error_ratios(attend_atomic, OPTIONS, numerics, case.inputs(DEVICE), case.grad_output(DEVICE))
    assert max(found.values()) <= 1.0, found


def gradients(attend, inputs, grad_output) -> list[torch.Tensor]:
    torch.manual_seed(5)
    return list(torch.autograd.grad(attend(inputs, OPTIONS).output, [inputs.query, inputs.key, inputs.value], grad_output))


@runs
def test_dropout_draws_the_same_in_one_kernel_as_in_two():
    from tfkit_fused.attend import attend, attend_atomic

    inputs = replace(FULL.inputs(DEVICE), dropout=0.3)
    one, two = (gradients(each, inputs, FULL.grad_output(DEVICE)) for each in (attend_atomic, attend))
    torch.testing.assert_close(one[0], two[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(one[1], two[1])
    assert torch.equal(one[2], two[2])


@pytest.fixture
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


class Counted:
    """A kernel that counts its launches."""

    def __init__(self, kernel) -> None:
        self.kernel, self.launches = kernel, 0

    def __call__(self, *arguments):
        self.launches += 1
        self.kernel(*arguments)


@pytest.fixture
def kernel_of_queries(monkeypatch) -> Counted:
    from tfkit_fused import launch

    counted = Counted(launch.queries)
    monkeypatch.setattr(launch, "queries", counted)
    return counted


@runs
def test_two_kernels_run_only_where_they_are_due(kernel_of_queries, launching):
    from tfkit_fused import launch
    from tfkit_fused.attend import attend, attend_atomic

    inputs, grad = FULL.inputs(DEVICE), FULL.grad_output(DEVICE)
    gradients(attend_atomic, inputs, grad)
    assert kernel_of_queries.launches == 0
    gradients(attend, inputs, grad)
    assert kernel_of_queries.launches == 1
    sizes = launch.tiles_for
    launching(tiles_for=lambda kernel, *others: () if kernel == "together" else sizes(kernel, *others))
    gradients(attend_atomic, inputs, grad)
    assert kernel_of_queries.launches == 2


@runs
def test_torchs_switch_selects_the_two_kernels_bit_for_bit(kernel_of_queries, deterministic):
    from tfkit_fused.attend import attend, attend_atomic

    inputs, grad = FULL.inputs(DEVICE), FULL.grad_output(DEVICE)
    one, two = gradients(attend_atomic, inputs, grad), gradients(attend, inputs, grad)
    assert kernel_of_queries.launches == 2
    assert all(torch.equal(*pair) for pair in zip(one, two, strict=True))


def test_a_deterministic_request_is_refused_and_another_is_not():
    asked = AttentionRequest(device="cuda", cuda_capability=(9, 0), dtype="bfloat16", head_dim=64, value_dim=64, gradients=True)
    options = tfkit_fused.FusedOptions()
    assert check_request(tfkit_fused.ATOMIC, asked, options).refused == ()
    assert check_request(tfkit_fused.ATOMIC, replace(asked, deterministic=True), options).refused == (
        "its backward is not deterministic",
    )
    assert check_request(tfkit_fused.FUSED, replace(asked, deterministic=True), options).refused == ()


def test_it_differs_from_fused_in_what_atomics_cost_and_in_nothing_else():
    fused, atomic = (each.capabilities.model_dump() for each in (tfkit_fused.FUSED, tfkit_fused.ATOMIC))
    differs = {name for name in fused if fused[name] != atomic[name]}
    assert differs == {"deterministic_backward", "batch_invariant"}
