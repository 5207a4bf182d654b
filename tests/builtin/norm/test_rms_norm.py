from __future__ import annotations

import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from tfkit.builtin.norm.entries import RmsNormOptions
from tfkit.builtin.norm.norms import RmsNorm, rms_norm as build

PEERS = [(LlamaRMSNorm, False), (T5LayerNorm, False), (Gemma2RMSNorm, True)]


def pair(peer_type: type, unit_offset: bool, dtype: torch.dtype) -> tuple[RmsNorm, torch.nn.Module]:
    torch.manual_seed(0)
    ours, peer = build(RmsNormOptions(eps=0.1, unit_offset=unit_offset), 24), peer_type(24, eps=0.1)
    assert torch.equal(ours.weight, peer.weight)
    with torch.no_grad():
        peer.weight.normal_()
        ours.weight.copy_(peer.weight)
    return ours.to(dtype), peer.to(dtype)


def exact(x: torch.Tensor, module: RmsNorm) -> torch.Tensor:
    weight = module.weight.double() + (1 if module.unit_offset else 0)
    return weight * x.double() / (x.double().square().mean(-1, keepdim=True) + module.eps).sqrt()


@pytest.mark.parametrize(("peer_type", "unit_offset"), PEERS)
def test_equals_hugging_face_in_float32(peer_type, unit_offset):
    ours, peer = pair(peer_type, unit_offset, torch.float32)
    x = torch.randn(5, 24) * 3
    torch.testing.assert_close(ours(x), peer(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("peer_type", "unit_offset"), PEERS)
def test_half_dtypes_round_once_where_hugging_face_rounds_at_most_twice(peer_type, unit_offset, dtype):
    ours, peer = pair(peer_type, unit_offset, dtype)
    x = (torch.randn(500, 24) * 3).to(dtype)
    true, step = exact(x, ours), torch.finfo(dtype).eps / 2
    assert ours(x).dtype is dtype
    # Half a unit in the last place, of the number or of the least normal one; 2^-19 is for float32 inside.
    once = true.abs() * (step + 2**-19) + torch.finfo(dtype).tiny * step
    assert ((ours(x).double() - true).abs() <= once).all()
    assert ((ours(x).double() - peer(x).double()).abs() <= 3.1 * once).all()


def test_statistics_of_float16_do_not_overflow():
    x = torch.full((1, 64), 30000.0, dtype=torch.float16)
    ours = build(RmsNormOptions(), 64).half()
    assert torch.equal(ours(x), torch.ones_like(x))


def test_mixed_dtypes_keep_that_of_the_input_without_a_warning():
    ours = build(RmsNormOptions(), 24)
    x = torch.randn(3, 24).bfloat16()
    assert ours(x).dtype is torch.bfloat16
    assert torch.equal(ours(x), exact(x, ours).bfloat16())


def test_unit_offset_keeps_small_weights_in_bfloat16():
    ours = build(RmsNormOptions(unit_offset=True), 4).bfloat16()
    with torch.no_grad():
        ours.weight.fill_(2**-10)
    x = torch.full((1, 4), 1.0, dtype=torch.float64)
    torch.testing.assert_close(ours(x), torch.full_like(x, 1 + 2**-10), rtol=1e-6, atol=0)


def test_scale_of_the_input_does_not_matter():
    ours = build(RmsNormOptions(eps=1e-12), 24).double()
    x = torch.randn(3, 24, dtype=torch.float64)
    torch.testing.assert_close(ours(x), ours(1000 * x), rtol=1e-9, atol=0)
