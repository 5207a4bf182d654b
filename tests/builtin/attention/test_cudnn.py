"""What `cudnn` declares and refuses, and that fixing the kernel leaves no trace; whether its numbers are right is asked on CUDA
(test_conformance)."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st

from attention_calls import BY_NAME, typed
from tfkit.builtin.attention import cudnn, sdpa
from tfkit.builtin.attention.entries import CUDNN
from tfkit.inspection import MASK_TERMS, check_request
from tfkit.plugin import AttentionRequest, BackendRefused, NoOptions

HOPPER = AttentionRequest(
    device="cuda", cuda_capability=(9, 0), dtype="bfloat16", head_dim=64, value_dim=64, queries=512, keys=512, gradients=True
)


def reasons(**requested):
    return check_request(CUDNN, replace(HOPPER, **requested), NoOptions()).refused


@pytest.mark.parametrize(
    ("requested", "reason"),
    [
        ({"device": "cpu", "cuda_capability": None}, "device cpu is not among cuda"),
        ({"cuda_capability": (7, 5)}, "sm_75 is older than sm_80"),
        ({"dtype": "float32"}, "dtype float32"),
        ({"head_dim": 256, "value_dim": 256}, "head_dim 256"),
        ({"head_dim": 60, "value_dim": 60}, "head_dim 60"),
        ({"value_dim": 60}, "value dim 60"),
        ({"keys": 1}, "key length 1"),
        ({"bias": "dense"}, "dense bias is not declared"),
        ({"dropout": True}, "dropout is not declared"),
        ({"softcap": True}, "softcap"),
        ({"lse": True}, "log-sum-exp"),
        ({"deterministic": True}, "not deterministic"),
        ({"compiled": True}, "torch.compile"),
        ({"queries": 1, "keys": 100}, "issues/1072"),
        ({"grouped": True, "cuda_capability": (10, 0)}, "issues/193893"),
        *(
            ({"mask_terms": frozenset({term}), "keys": keys}, "issues/196678")
            for term in ("causal", "key_lengths")
            for keys in (64, 320)
        ),
    ],
)
def test_refusals(requested, reason):
    found = reasons(**requested)
    assert len(found) == 1
    assert reason in found[0]


@pytest.mark.parametrize(
    "requested",
    [
        {},
        {"cuda_capability": (8, 0), "dtype": "float16", "head_dim": 128, "value_dim": 64},
        {"mask_terms": frozenset(MASK_TERMS), "tensor_offset": True, "grouped": True},
        {"mask_terms": frozenset({"causal"}), "keys": 64, "gradients": False},
        {"mask_terms": frozenset({"query_lengths"}), "keys": 64},
        {"queries": 1, "keys": 4096, "gradients": False, "grouped": True, "mask_terms": frozenset({"causal"})},
    ],
)
def test_served_calls(requested):
    assert reasons(**requested) == ()


@given(st.data())
def test_asking_for_less_adds_no_reason(data):
    less = {"gradients": (True, False), "grouped": (True, False), "mask_terms": (frozenset({"causal"}), frozenset())}
    full = {name: more for name, (more, _) in less.items()}
    full["keys"] = data.draw(st.sampled_from([2, 64, 100, 192]))
    full["queries"] = data.draw(st.sampled_from([1, 64]))
    full["cuda_capability"] = data.draw(st.sampled_from([(9, 0), (10, 0)]))
    dropped = data.draw(st.sets(st.sampled_from(sorted(less))))
    assert set(reasons(**full)) >= set(reasons(**{**full, **{name: less[name][1] for name in dropped}}))


def test_a_missing_device_is_stated():
    inputs = typed(BY_NAME["plain"], torch.bfloat16).inputs()
    with pytest.raises(BackendRefused, match="`cudnn` runs on CUDA, not on cpu"):
        cudnn.attend(inputs, NoOptions())
    with pytest.raises(BackendRefused, match="dtypes other than"):
        cudnn.attend(typed(BY_NAME["plain"]).inputs(), NoOptions())


def switches():
    backends = torch.backends.cuda
    return (
        backends.flash_sdp_enabled(), backends.mem_efficient_sdp_enabled(), backends.math_sdp_enabled(),
        backends.cudnn_sdp_enabled(),
    )  # fmt: skip


class OnCuda(torch.Tensor):
    """A CPU tensor that says that it is on CUDA."""

    is_cuda = True


def test_the_kernel_is_fixed_within_the_call_alone(monkeypatch):
    seen, before = [], switches()

    def kernel(query, key, value, mask, dropout, causal, **rest):
        seen.append((switches(), query.stride(-1), key.stride(-1)))
        if len(seen) == 2:
            raise RuntimeError("No available kernel. Aborting execution.")
        return query.clone()

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", kernel)
    inputs = typed(BY_NAME["plain"], torch.bfloat16, gradients=False).inputs()
    features_apart = inputs.key.mT.contiguous().mT
    inputs = replace(inputs, query=inputs.query.as_subclass(OnCuda), key=features_apart)
    cudnn.attend(inputs, NoOptions())
    with pytest.raises(RuntimeError, match="No available kernel"):
        cudnn.attend(inputs, NoOptions())
    assert seen == [((False, False, False, True), 1, 1)] * 2
    assert switches() == before


def test_threads_leave_the_switches_as_they_were(monkeypatch):
    before = switches()
    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", lambda query, *rest, **more: query.clone())
    inputs = typed(BY_NAME["plain"], torch.bfloat16, gradients=False).inputs()
    inputs = replace(inputs, query=inputs.query.as_subclass(OnCuda))
    threads = [threading.Thread(target=lambda: [cudnn.attend(inputs, NoOptions()) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert switches() == before
