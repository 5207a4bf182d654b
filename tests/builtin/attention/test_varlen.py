"""The logic of `varlen`, with stand-ins for torch's kernel on a CPU; its numbers are asked on CUDA (test_conformance)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import attention

from flash_stand_in import packed
from suite_reports import share_relations
from tfkit.builtin.attention import entries, varlen
from tfkit.builtin.attention.entries import VARLEN, VARLEN_FA3, VARLEN_FA4
from tfkit.inspection import check_request
from tfkit.plugin import AttentionInputs, AttentionRequest, BackendRefused, Device, Mask, NoOptions, Range, require_capabilities
from tfkit.plugin.flash_calls import run_flash_calls
from tfkit_conformance import backend_under_test, check_backend

HOPPER = AttentionRequest(
    device="cuda", cuda_capability=(9, 0), dtype="bfloat16", head_dim=64, value_dim=64, queries=8, keys=8, gradients=True
)


def varlen_attn(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1), enable_gqa=False,
    seqused_k=None, block_table=None, num_splits=None,
):  # fmt: skip
    """torch's function by its documentation; like torch's, it runs on whichever implementation is active."""
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert num_splits == 1
    assert max(window_size) < 2**31
    RAN.append(f"forward {attention.current_flash_attention_impl()}")
    output, _ = packed(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, causal=False, window=window_size, softcap=0.0
    )
    return _Backward.apply(output)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output):
        return output.clone()

    @staticmethod
    def backward(ctx, gradient):
        RAN.append(f"backward {attention.current_flash_attention_impl()}")
        return gradient


RAN: list[str] = []


class Handle:
    def remove(self):
        pass


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    monkeypatch.setattr(varlen.varlen, "varlen_attn", varlen_attn)
    for name in ("FA3", "FA4", "FA9"):
        monkeypatch.setitem(attention._registry._FLASH_ATTENTION_IMPLS, name, Handle)
    RAN.clear()
    yield
    assert attention.current_flash_attention_impl() is None


def on_cpu(entry):
    """The entry as this test declares it: a CPU, float32, and what need not be installed."""
    here = {"devices": (Device(kind="cpu"),), "dtypes": frozenset({"float32"}), "head_dim": Range(multiple=8)}

    def unsupported(request, options):
        return tuple(reason for reason in entry.unsupported(request, options) if "hidden" in reason)

    return replace(entry, capabilities=entry.capabilities.model_copy(update=here), unsupported=unsupported)


def attend(implementation):
    kernel = varlen.call_varlen if implementation is None else varlen.with_implementation(implementation, varlen.call_varlen)
    check = require_capabilities("varlen", on_cpu(VARLEN).capabilities)

    def run(inputs, options):
        check(inputs)
        return run_flash_calls(inputs, kernel)

    return run


@pytest.mark.exhaustive
def test_the_logic_is_conformant(monkeypatch):
    """With an implementation, which adds to `varlen` alone; their results are compared below. A share of the relations: all of
    them run on `flash_attn.v2`, which makes its calls by the same function."""
    share_relations(monkeypatch, 0, 2)
    backend = replace(backend_under_test(on_cpu(VARLEN), attend=attend("FA3")), prepare=varlen.prepare)
    report = check_backend(backend, profile="quick", dtypes=["float32"])
    report.raise_for_failures()
    assert report.verdict == "CONFORMANT", [check for check in report.checks if check.status == "inconclusive"]


def call(gradients=True):
    query, key = torch.randn(2, 4, 3, 8, requires_grad=gradients), torch.randn(2, 2, 5, 8, requires_grad=gradients)
    return AttentionInputs(query, key, key, Mask(causal=True, offset=2, key_lengths=torch.tensor([5, 2])), 1.0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(2**63 - 1, 2**63 - 1), (2**31, 0), (5, 2**31), (7, 7)])
def test_a_window_wider_than_the_keys_is_none(causal, window):
    inputs = replace(call(gradients=False), mask=Mask(causal=causal, offset=2, key_lengths=torch.tensor([5, 2])))
    bounded = replace(inputs, mask=replace(inputs.mask, window=window))
    if window[1] == 0:
        inputs = replace(inputs, mask=replace(inputs.mask, causal=True))
    found, expected = (attend(None)(one, NoOptions()).output for one in (bounded, inputs))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("gradients", [False, True])
def test_an_implementation_is_active_in_its_forward_and_its_backward_alone(gradients):
    inputs = call(gradients)
    output = attend("FA3")(inputs, NoOptions()).output
    own = attend(None)(inputs, NoOptions()).output
    assert torch.equal(output, own)
    if gradients:
        found, expected = (torch.autograd.grad(each.sin().sum(), [inputs.query, inputs.key]) for each in (output, own))
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        assert {step for step in RAN if "backward" in step} == {"backward FA3", "backward None"}
    assert {step for step in RAN if "forward" in step} == {"forward FA3", "forward None"}


def test_an_active_implementation_stays_and_another_one_is_refused():
    attention.activate_flash_attention_impl("FA3")
    try:
        attend("FA3")(call(), NoOptions())
        assert attention.current_flash_attention_impl() == "FA3"
        with pytest.raises(BackendRefused, match="needs the flash attention implementation FA4, and FA3 is"):
            attend("FA4")(call(), NoOptions())
    finally:
        attention.restore_flash_attention_impl()


def test_torch_is_restored_after_an_error(monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("the kernel fails")

    monkeypatch.setattr(varlen.varlen, "varlen_attn", fail)
    with pytest.raises(RuntimeError, match="the kernel fails"):
        attend("FA4")(call(gradients=False), NoOptions())


@pytest.mark.parametrize(
    ("entry", "requested", "reason"),
    [
        (VARLEN, {"device": "cpu", "cuda_capability": None}, "device cpu"),
        (VARLEN, {"cuda_capability": (7, 5)}, "older than sm_80"),
        (VARLEN, {"head_dim": 60, "value_dim": 60}, "head_dim 60"),
        (VARLEN, {"dropout": True}, "dropout is not declared"),
        (VARLEN, {"mask_terms": frozenset({"key_visible", "window"})}, "a window over keys"),
        (VARLEN_FA3, {}, "flash_attn_interface is not installed"),
        (VARLEN_FA3, {"cuda_capability": (10, 0)}, "sm_90 alone"),
        (VARLEN_FA4, {}, "pip install --pre flash-attn-4"),
        (VARLEN_FA4, {"cuda_capability": (12, 0)}, "sm_90 and sm_100"),
    ],
)
def test_refusals(entry, requested, reason):
    assert any(reason in each for each in check_request(entry, replace(HOPPER, **requested), NoOptions()).refused)


def test_an_older_torch_is_refused(monkeypatch):
    monkeypatch.setattr(entries, "version", lambda package: "2.12.0+cu130")
    assert check_request(VARLEN, HOPPER, NoOptions()).accepted
    monkeypatch.setattr(entries, "version", lambda package: "2.11.0+cu130")
    assert check_request(VARLEN, HOPPER, NoOptions()).refused == ("it needs torch 2.12, and this is 2.11.0+cu130",)


def test_a_window_over_hidden_keys_is_refused_when_called():
    inputs = replace(call(), mask=Mask(window=(1, 0), offset=2, key_visible=torch.ones(2, 5, dtype=torch.bool)))
    with pytest.raises(BackendRefused, match="no window over keys"):
        attend(None)(inputs, NoOptions())
