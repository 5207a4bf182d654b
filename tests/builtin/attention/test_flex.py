"""What is particular to `flex`: masks as intervals, limits on the CPU, and that decoding does not recompile without end."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention.flex_attention import AuxOutput

from attention_calls import BY_NAME, typed
from tfkit.builtin.attention import flex
from tfkit.builtin.attention.entries import FLEX, FlexOptions
from tfkit.inspection import check_request
from tfkit.plugin import AttentionRequest, Mask, shapes_of
from tfkit_conformance.attention.reference import visible_pairs
from tfkit_conformance.attention.table import CASES

PLAIN = AttentionRequest(dtype="float32", head_dim=64, value_dim=64, queries=5, keys=7, gradients=False)


@pytest.mark.parametrize("case", [case for case in CASES if "segments" not in case.name], ids=lambda case: case.name)
def test_positions_and_lengths_are_one_interval_of_keys(case):
    inputs = typed(case).inputs()
    mask = replace(inputs.mask, visible=None, key_visible=None)
    first, last = flex._interval(mask, shapes_of(inputs))
    keys = torch.arange(case.K)
    inside = (first[..., None] <= keys) & (keys <= last[..., None])
    wanted = visible_pairs(mask, case.B, 1, case.Q, case.K)[:, 0]
    assert torch.equal(inside.expand_as(wanted), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_log_sum_exp_is_float32_whatever_the_dtype(dtype):
    inputs = replace(typed(BY_NAME["plain"], dtype, gradients=False).inputs(), return_lse=True)
    assert flex.attend(inputs, FlexOptions()).lse.dtype == torch.float32


@pytest.mark.parametrize(
    ("requested", "accepted"),
    [
        ({"device": "cpu"}, True),
        ({"device": "cpu", "gradients": True}, False),
        ({"device": "cpu", "compiled": True}, False),
        ({"device": "cuda", "gradients": True, "compiled": True}, True),
        ({"device": "cuda", "head_dim": 8, "value_dim": 8}, False),
        ({"device": "cuda", "dtype": "float64"}, False),
        ({"device": "cpu", "dropout": True}, False),
        ({"device": "cuda", "bias": "dense", "bias_gradient": True}, False),
    ],
)
def test_joint_limits(requested, accepted):
    assert check_request(FLEX, replace(PLAIN, **requested), FlexOptions()).accepted == accepted


def test_a_kernel_is_fixed_on_cuda_alone(monkeypatch):
    flash = FlexOptions(kernel="flash")
    on_cuda = replace(PLAIN, device="cuda", cuda_capability=(9, 0))
    assert check_request(FLEX, on_cuda, FlexOptions(kernel="triton_decode")).accepted
    assert check_request(FLEX, on_cuda, flash).refused == ("flash-attn-4 is not installed (pip install --pre flash-attn-4)",)
    assert (
        "`kernel: triton` exists on CUDA only"
        in check_request(FLEX, replace(PLAIN, device="cpu"), FlexOptions(kernel="triton")).refused
    )
    asked = []

    def compiled(*tensors, **call):
        asked.append(call["kernel_options"])
        return tensors[0], AuxOutput(lse=tensors[0][..., 0])

    monkeypatch.setattr(flex, "_unfused", compiled)
    for options in (FlexOptions(), flash):
        flex.attend(typed(CASES[0], gradients=False).inputs(), options)
    assert asked == [None, {"BACKEND": "FLASH"}]


@pytest.mark.slow
def test_decoding_step_by_step_compiles_only_once_or_twice():
    inputs = typed(CASES[0], gradients=False).inputs()
    counted = torch._dynamo.utils.counters["stats"]

    def step(offset):
        mask = Mask(causal=True, offset=offset)
        return flex.attend(replace(inputs, query=inputs.query[:, :, :1], mask=mask), FlexOptions())

    for offset in range(2):
        step(offset)
    before = counted["unique_graphs"]
    for offset in range(2, 6):
        step(offset)
    assert counted["unique_graphs"] == before


def test_a_compiled_call_meets_no_limit_of_recompilations(monkeypatch):
    """torch stops compiling after 8 kinds of calls and then computes the whole score matrix. No device is needed to see it."""
    met = []

    def compiled(*tensors, **call):
        met.append((torch._dynamo.config.recompile_limit, torch._dynamo.config.accumulated_recompile_limit))
        return tensors[0], AuxOutput(lse=tensors[0][..., 0])

    monkeypatch.setattr(flex, "_compiled", lambda: compiled)
    monkeypatch.setattr(flex, "_unfused", flex._fused)
    flex.attend(typed(CASES[0], gradients=False).inputs(), FlexOptions())
    assert met == [(flex.RECOMPILES, flex.RECOMPILES)]
    assert torch._dynamo.config.recompile_limit < flex.RECOMPILES
