"""A cell as tensors: shapes, masks, and what the call takes, against pairs counted one by one."""

from __future__ import annotations

import pytest
import torch

from measured_cells import ONE_OF_EACH
from tfkit_conformance.attention.reference import visible_pairs as pair_by_pair
from tfkit_conformance.bench.call import call_of, request_of, visible_pairs


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_pairs_flops_and_bytes(name, cell_of, scale) -> None:
    cell = cell_of(name)
    call = call_of(cell, scale, torch.float32, "cpu", 0)
    B, H, Q, D = call.inputs.query.shape
    G, K = call.inputs.key.shape[1:3]
    assert call.pairs == int(pair_by_pair(call.inputs.mask, B, H, Q, K).sum())
    assert call.flops == (14 if cell.training else 4) * D * call.pairs
    assert call.bytes == 4 * D * (2 * B * H * Q + 2 * B * G * K)
    assert call.inputs.query.transpose(1, 2).is_contiguous()
    assert call.inputs.query.requires_grad == cell.training
    assert call.grad_output.shape == call.inputs.query.shape
    if cell.decode:
        assert (Q, H // G) == (1, 4)


@pytest.mark.parametrize("side", ["encoder", "decoder", "cross"])
def test_padded_batches_equal_those_of_a_model(side, cell_of, scale) -> None:
    call = call_of(cell_of(f"multi30k-{side}/training"), scale, torch.float32, "cpu", 1)
    mask, K = call.inputs.mask, call.inputs.key.shape[2]
    assert int(mask.key_lengths.max()) == K
    assert int(mask.key_lengths.min()) < K
    assert mask.causal == (side == "decoder")
    assert (mask.query_lengths is mask.key_lengths) == (side == "decoder")
    assert (call.inputs.query.shape[2] == K) == (side != "cross")


def test_the_request_equals_that_of_the_call(cell_of, scale) -> None:
    request = request_of(call_of(cell_of("t5-512/training"), scale, torch.bfloat16, "cpu", 0), None)
    assert (request.bias, request.bias_gradient, request.gradients, request.dtype) == ("distance", True, True, "bfloat16")
    request = request_of(call_of(cell_of("alibi-512/training"), scale, torch.float32, "cpu", 0), None)
    assert (request.bias, request.bias_gradient, request.gradients) == ("linear", False, True)
    request = request_of(call_of(cell_of("decode-1024/forward"), scale, torch.float32, "cpu", 0), (9, 0))
    assert (request.grouped, request.queries, request.gradients, request.cuda_capability) == (True, 1, False, (9, 0))


def test_the_count_follows_windows_that_look_ahead() -> None:
    from tfkit.plugin import Mask

    for window in ((2, None), (None, 1), (1, 2)):
        mask = Mask(window=window, offset=3, key_lengths=torch.tensor([9, 2]), query_lengths=torch.tensor([4, 20]))
        assert visible_pairs(mask, 2, 5, 8) == int(pair_by_pair(mask, 2, 1, 5, 8).sum())
