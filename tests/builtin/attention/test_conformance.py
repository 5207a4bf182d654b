"""The built-in backends pass the conformance suite for what they declare, as third-party ones do. flex, whose unfused form on a
CPU takes minutes for it, is checked there by the named calls of test_entries, and whole on CUDA."""

from __future__ import annotations

import pytest
import torch

from tfkit.builtin.attention.entries import CUDNN, EAGER, FLEX, SDPA, VARLEN, VARLEN_FA3, VARLEN_FA4
from tfkit.plugin import AttentionRequest
from tfkit_conformance import check_backend
from tiers import EVERY_CASE

CHOSEN = [(EAGER, "float32"), (SDPA, "bfloat16")]
ALL = [(entry, dtype) for entry in (EAGER, SDPA) for dtype in ("float32", "bfloat16")]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("entry", "dtype"), ALL if EVERY_CASE else CHOSEN, ids=lambda value: getattr(value, "name", value))
def test_it_is_conformant(entry, dtype):
    report = check_backend(entry, profile="quick", dtypes=[dtype])
    report.raise_for_failures()
    assert report.verdict == "CONFORMANT", [check for check in report.checks if check.status == "inconclusive"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("entry", [EAGER, SDPA, FLEX, CUDNN, VARLEN, VARLEN_FA3, VARLEN_FA4], ids=lambda entry: entry.name)
def test_it_is_conformant_on_cuda(entry):
    if reasons := entry.unsupported(AttentionRequest(), entry.options()):
        pytest.skip(f"not run: {reasons[0]}")  # a package that is not installed, or an older torch
    report = check_backend(entry, profile="quick", device="cuda")
    report.raise_for_failures()
    assert report.verdict == "CONFORMANT"
