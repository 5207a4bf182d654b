"""Which kernels torch takes on a device that is not here, by the rules of its source."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tfkit.graph import sdpa_kernels
from tfkit.graph.sdpa_kernels import facts, families, installed_cudnn, order
from tfkit.plugin import AttentionRequest

CUDNN_FIRST, CUDNN_LAST = ("cudnn", "flash", "efficient", "math"), ("flash", "efficient", "math", "cudnn")
PLAIN = AttentionRequest(device="cuda", cuda_capability=(9, 0), dtype="bfloat16", head_dim=64, value_dim=64)


@pytest.mark.parametrize(
    ("capability", "torch", "cudnn", "found", "depends"),
    [
        ((9, 0), "2.13.0+cu130", "9.15.1.9", CUDNN_FIRST, ""),
        ((9, 0), "2.13.0+cu130", "9.15.0.57", CUDNN_LAST, ""),
        ((10, 0), "2.14.1", "9.20.0.1", CUDNN_FIRST, ""),
        ((8, 0), "2.13.0", "9.20.0.1", CUDNN_LAST, ""),
        ((10, 3), "2.13.0", "9.20.0.1", CUDNN_FIRST, ""),
        ((12, 0), "2.13.0", "9.20.0.1", CUDNN_LAST, ""),
        ((9, 0), "2.9.1", "9.20.0.1", CUDNN_LAST, ""),
        ((9, 0), "2.13.0", None, CUDNN_FIRST, "cuDNN is first where it is newer than 9.15"),
        (None, "2.13.0", "9.20.0.1", CUDNN_FIRST, "cuDNN is first on sm_90, sm_100 and sm_103 alone"),
        ((9, 0), "2.12.0", "9.20.0.1", CUDNN_FIRST, ""),
        ((10, 3), "2.11.0", "9.19.0.56", CUDNN_FIRST, ""),
        ((9, 0), "2.10.0", "9.10.2.21", CUDNN_LAST, ""),
        ((9, 0), "2.5.1", "9.20.0.1", (), "the order of torch 2.5.1 is not known here"),
    ],
)
def test_the_order_is_that_of_the_version(capability, torch, cudnn, found, depends, monkeypatch):
    monkeypatch.delenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", raising=False)
    assert order(capability, torch, cudnn) == (found, depends)


def test_torchs_switch_puts_cudnn_last(monkeypatch):
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert order((9, 0), "2.13.0", "9.20.0.1") == (CUDNN_LAST, "")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, {"plain": "cudnn"}),
        ({"mask_terms": frozenset({"causal"})}, {"plain": "cudnn"}),
        ({"mask_terms": frozenset({"causal", "key_visible"})}, {"plain": "cudnn", "masked": "efficient"}),
        ({"mask_terms": frozenset({"window", "causal"})}, {"masked": "efficient"}),
        ({"bias": "distance"}, {"masked": "efficient"}),
        ({"bias": "linear"}, {"masked": "math"}),
        ({"bias": "linear", "dtype": "float32"}, {"masked": "efficient"}),
        ({"dtype": "float32"}, {"plain": "efficient"}),
        ({"dtype": "float64"}, {"plain": "math"}),
        ({"head_dim": 20, "value_dim": 20}, {"plain": "flash"}),
        ({"head_dim": 512, "value_dim": 512}, {"plain": "efficient"}),
        ({"value_dim": 32}, {"plain": "efficient"}),
        ({"cuda_capability": (7, 5)}, {"plain": "math"}),
        ({"cuda_capability": (7, 5), "dtype": "float16"}, {"plain": "efficient"}),
    ],
)
def test_the_family_is_the_first_that_a_call_suits(changes, found):
    from dataclasses import replace

    assert families(replace(PLAIN, **changes), CUDNN_FIRST) == found
    assert families(replace(PLAIN, **changes), ()) == {}


def test_cudnn_is_that_of_the_package_that_torch_loads(monkeypatch):
    monkeypatch.setattr(sdpa_kernels, "PACKAGES", ("no-such-package", "torch"))
    assert (installed_cudnn() or "").startswith(facts((9, 0))["torch"])
    monkeypatch.setattr(sdpa_kernels, "PACKAGES", ("no-such-package",))
    assert installed_cudnn() is None


def test_without_a_device_torch_itself_says_nothing():
    """Why there is a table here: torch's own predicates say no to each call, or, in a build for CUDA, ask for a driver."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    query = torch.zeros(1, 2, 16, 64, dtype=torch.bfloat16)
    asked = torch.backends.cuda.SDPAParams(query, query, query, None, 0.0, False, False)
    for predicate in (torch.backends.cuda.can_use_flash_attention, torch.backends.cuda.can_use_cudnn_attention):
        with suppress(torch.AcceleratorError):
            assert not predicate(asked)
