"""What is timed is evaluated: right backends pass on every kind of call, and a mutant in any tensor is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from measured_cells import ONE_OF_EACH
from tfkit.builtin.attention import eager
from tfkit.builtin.attention.entries import EAGER, SDPA
from tfkit.inspection import bind
from tfkit_conformance.bench.call import call_of
from tfkit_conformance.bench.candidate import Candidate, guarded
from tfkit_conformance.bench.check import ReferenceCheck


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_correct_backends_pass(name, dtype, cell_of, scale, monkeypatch) -> None:
    monkeypatch.setattr("tfkit_conformance.bench.check.PAIRS", 60)  # a block of a few rows, as with long calls
    for way in ("forward", "training"):
        try:
            cell = cell_of(f"{name.partition('/')[0]}/{way}")
        except ValueError:
            continue
        check = ReferenceCheck(call_of(cell, scale, dtype, "cpu", 0))
        for entry in (EAGER, SDPA):
            verdict = check.evaluate(bind(entry, entry.options()))
            assert verdict.worst is not None
            assert not verdict.wrong, (entry.name, verdict)


class Doubled(torch.autograd.Function):
    """The identity, whose gradient is a thousandth too large."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.001


@pytest.mark.parametrize("tensor", ["output", "query", "key", "value", "bias"])
def test_a_mutant_of_a_thousandth_is_seen(tensor, cell_of, scale, backend_of) -> None:
    def mutant(inputs, options):
        if tensor == "bias":
            inputs = replace(inputs, bias=replace(inputs.bias, values=Doubled.apply(inputs.bias.values)))
        elif tensor != "output":
            inputs = replace(inputs, **{tensor: Doubled.apply(getattr(inputs, tensor))})
        found = eager.attend(inputs, options)
        return replace(found, output=found.output * 1.001) if tensor == "output" else found

    check = ReferenceCheck(call_of(cell_of("t5-512/training"), scale, torch.float32, "cpu", 0))
    verdict = check.evaluate(bind(*backend_of("mutant", mutant)))
    assert verdict.wrong
    assert verdict.tensor == tensor or tensor == "output"


def test_a_nan_anywhere_is_wrong(cell_of, scale, backend_of) -> None:
    def mutant(inputs, options):
        found = eager.attend(inputs, options)
        output = found.output.clone()
        output[0, 0, 0] = torch.nan
        return replace(found, output=output)

    assert (
        ReferenceCheck(call_of(cell_of("dense-d64-512/forward"), scale, torch.float32, "cpu", 0))
        .evaluate(bind(*backend_of("mutant", mutant)))
        .wrong
    )


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "memory"),
        (MemoryError(), "memory"),
        (ValueError("no\nsuch"), "failed"),
    ],
)
def test_what_a_backend_raises_is_its_status(error, status) -> None:
    candidate = Candidate("a")
    with guarded(candidate, "cpu"):
        raise error
    assert candidate.status == status
    assert "\n" not in candidate.reason
    with pytest.raises(KeyboardInterrupt), guarded(Candidate("a"), "cpu"):
        raise KeyboardInterrupt
