"""What relations ask on a CUDA device, where kernels may add to gradients in any order. No device is needed: the tensors have
no numbers."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tfkit.builtin.attention.entries import CUDNN, EAGER, SDPA
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.compare import request_of
from tfkit_conformance.attention.evaluated import Call
from tfkit_conformance.relations import RELATIONS
from tfkit_conformance.relations.call_parts import deterministic_if_declared, repeats

CASE = Case(B=2, H=2, G=2, Q=5, K=7, D=16, V=16, dtype="bfloat16", gradients=True)


@pytest.fixture
def call_on(monkeypatch):
    """A call of a backend on a device."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))

    def make(entry, device, **fields):
        inputs, sent = replace(CASE, **fields).inputs(), CASE.grad_output()
        if device == "cuda":
            with FakeTensorMode():
                query = torch.empty(inputs.query.shape, dtype=inputs.query.dtype, device=device)
            inputs = replace(inputs, query=query.requires_grad_(inputs.query.requires_grad))
        return Call(backend_under_test(entry, device=device), inputs, sent)

    return make


@pytest.mark.parametrize(
    ("entry", "device", "sure"),
    [(EAGER, "cpu", True), (SDPA, "cpu", True), (EAGER, "cuda", True), (SDPA, "cuda", False), (CUDNN, "cuda", False)],
)
def test_bits_of_gradients_are_compared_only_where_they_are_promised(entry, device, sure, call_on):
    same = repeats(call_on(entry, device))
    assert [same("output"), same("gradient of query"), same("gradient of bias")] == [True, sure, sure]


@pytest.mark.parametrize(("entry", "device", "enabled"), [(EAGER, "cpu", 0), (EAGER, "cuda", 1), (SDPA, "cuda", 0)])
def test_torch_is_made_deterministic_on_cuda_only(entry, device, enabled, call_on):
    """torch adds to the gradient of a table by distance with atomics there, but under its switch."""
    with deterministic_if_declared(call_on(entry, device)):
        assert torch.are_deterministic_algorithms_enabled() == bool(enabled)
        if enabled:
            warnings.warn("Deterministic behavior was enabled, but this operation is not deterministic", stacklevel=1)
    assert not torch.are_deterministic_algorithms_enabled()
    with deterministic_if_declared(call_on(entry, device, gradients=False)):
        assert not torch.are_deterministic_algorithms_enabled()


def test_the_relation_of_deterministic_gradients_is_void_where_they_are_refused(call_on):
    relation = next(relation for relation in RELATIONS if relation.name == "deterministic_backward")
    words = {entry.name: relation.applies(CASE, call_on(entry, "cuda").subject) for entry in (EAGER, SDPA, CUDNN)}
    assert words == {
        "eager": "", "sdpa": "a deterministic backward of this call is refused on this device",
        "cudnn": "deterministic_backward is not declared",
    }  # fmt: skip
    assert relation.applies(CASE, call_on(SDPA, "cpu").subject) == ""


def test_a_request_on_cuda_has_the_compute_capability(call_on):
    assert request_of(call_on(CUDNN, "cuda").inputs).cuda_capability == (9, 0)
    assert request_of(call_on(EAGER, "cpu").inputs).cuda_capability is None
