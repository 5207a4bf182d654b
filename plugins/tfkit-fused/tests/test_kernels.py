"""The kernels against the float64 reference of tfkit, by its error bound, over several tiles each way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tfkit_fused
import torch
from torch import Tensor
from where import DEVICE, runs

from tfkit.plugin import AttentionInputs, Mask
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.compare import error_ratios
from tfkit_conformance.attention.reference import reference
from tfkit_conformance.attention.table import CASES

pytestmark = runs
SMALL = tfkit_fused.FusedOptions(tile_queries=16, tile_keys=16)
WIDE = tfkit_fused.FusedOptions(tile_queries=16, tile_keys=64)
"""Also several tiles each way, of many keys: the interpreter takes as long for a large tile as for a small one."""
FULL = Case(
    B=2, H=4, G=2, Q=37, K=53, D=24, V=40, gradients=True, lse=True, offset=(3, -5), causal=True, key_lengths=(50, 20),
    query_lengths=(37, 30),
)  # fmt: skip
TWO_HEADS = replace(FULL, H=2, G=1)
"""For what does not depend on the number of groups: the interpreter takes half as long."""


def ratios(case: Case, options: tfkit_fused.FusedOptions = SMALL) -> dict[str, float]:
    from tfkit_fused.attend import attend

    found = error_ratios(
        attend, options, tfkit_fused.FUSED.capabilities.numerics, case.inputs(DEVICE), case.grad_output(DEVICE)
    )
    assert max(found.values()) <= 1.0, found
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_named_calls(case, dtype):
    if dtype == "bfloat16" and DEVICE == "cpu":
        pytest.skip("not run: the interpreter computes wrongly in bfloat16")
    found = ratios(replace(case, dtype=dtype, gradients=True, bias_gradient=case.bias is not None, lse=True, dropout=0.0))
    assert {"output", "lse", "query", "key", "value"} <= found.keys()


@pytest.mark.parametrize("tiles", [(16, 64), (64, 16), (32, 128)])
@pytest.mark.parametrize("bias", [None, "dense", "linear", "distance"])
def test_tiles_of_any_size_and_every_bias_with_padding_and_offsets_by_row(tiles, bias):
    options = tfkit_fused.FusedOptions(tile_queries=tiles[0], tile_keys=tiles[1])
    ratios(replace(FULL, bias=bias, bias_gradient=bias is not None, softcap=2.0), options)


@pytest.mark.parametrize("axes", ["BHQK", "HQK", "QK", "BK", "HQ", "K", "Q.K"])
def test_the_gradient_of_a_dense_bias_is_summed_over_what_shares_it(axes):
    ratios(replace(FULL, bias="dense", bias_axes=axes, bias_gradient=True, segments=2))


@pytest.mark.parametrize(("low", "values"), [(-3, 5), (-60, 120), (0, 1), (40, 3), (-200, 4)])
def test_a_table_by_distance_may_end_anywhere(low, values):
    case = replace(TWO_HEADS, bias="distance", bias_low=low, bias_values=values, bias_gradient=True)
    options = tfkit_fused.FusedOptions(tile_queries=32, tile_keys=32)
    for offset in (0, 7, (3, -5)):
        ratios(replace(case, offset=offset), options)


@pytest.mark.parametrize(("D", "V"), [(1, 1), (8, 3), (96, 64), (256, 16), (16, 256)])
def test_head_dims_are_padded_inside(D, V):
    ratios(replace(FULL, Q=18, K=20, D=D, V=V, key_lengths=None, query_lengths=None))


@pytest.mark.parametrize("bias", [None, "dense", "linear", "distance"])
@pytest.mark.parametrize(("Q", "group"), [(1, 1), (3, 4), (16, 2)])
def test_few_queries_against_many_keys(Q, group, bias):
    """Split among programs: three chunks of 128 keys, of which one is partly and one wholly beyond a row's length."""
    H = max(2, group)
    case = replace(FULL, H=H, G=H // group, Q=Q, K=300, offset=(290, 280), key_lengths=(300, 120), query_lengths=None)
    ratios(replace(case, bias=bias, bias_gradient=bias is not None, segments=2, softcap=3.0), WIDE)
    if bias is None:
        ratios(replace(case, causal=False, window=(200, None), visible="BHQK", dtype="float16"), WIDE)


def test_what_else_is_in_the_batch_changes_no_bit():
    from tfkit_fused.attend import attend

    for case in (FULL, replace(FULL, Q=2, K=300, offset=(290, 280), query_lengths=None)):
        inputs = replace(case, gradients=False).inputs(DEVICE)
        alone = replace(
            inputs, query=inputs.query[1:], key=inputs.key[1:], value=inputs.value[1:],
            mask=Mask(**{name: term[1:] if isinstance(term, Tensor) else term for name, term in vars(inputs.mask).items()}),
        )  # fmt: skip
        assert torch.equal(attend(alone, SMALL).output, attend(inputs, SMALL).output[1:])


@pytest.mark.parametrize("window", [(0, 0), (5, 0), (None, 2), (3, None), (1000, 1000)])
def test_windows(window):
    ratios(replace(TWO_HEADS, causal=False, window=window))
    ratios(replace(TWO_HEADS, causal=True, window=window))


@pytest.mark.parametrize("window", [(2**31 - 1, 0), (2**63 - 1, None), (None, 2**63 - 1), (2**40, 2**40)])
def test_windows_without_end_hide_nothing(window):
    ratios(replace(TWO_HEADS, causal=False, window=window))


def test_a_nan_is_handed_on_and_no_blind_row():
    from tfkit_fused.attend import attend

    for Q, K in ((20, 24), (2, 300)):
        inputs = Case(Q=Q, K=K, D=8, V=8).inputs(DEVICE)
        inputs.query[0, 0, 1, 0] = torch.nan
        found = attend(replace(inputs, return_lse=True), SMALL)
        assert found.output[0, 0, 1].isnan().all()
        assert found.lse[0, 0, 1].isnan()
        assert not found.output[0, 0, 0].isnan().any()


def test_segments_are_compared_as_numbers():
    from tfkit_fused.attend import attend

    inputs = Case(Q=2, K=2, D=8, V=8).inputs(DEVICE)
    segments = torch.tensor([[-1, 3]], dtype=torch.int8), torch.tensor([[255, 3]], dtype=torch.uint8)
    mask = Mask(query_segments=segments[0].to(DEVICE), key_segments=segments[1].to(DEVICE))
    assert attend(replace(inputs, mask=mask, return_lse=True), SMALL).lse.isinf().tolist() == [[[True, False]]]


def test_rows_may_lie_anywhere():
    """Rows and features further apart than 32 bits can say within one tile."""
    from tfkit_fused.attend import attend

    inputs = replace(FULL, Q=20, K=20, key_lengths=None, query_lengths=None, D=8, V=8).inputs(DEVICE)
    key = inputs.key.detach()
    for strides in ((2, 1, 2**27, 4), (2, 1, 4, 2**28)):
        wide = torch.empty(2**31 + 2**29, dtype=key.dtype, device="cpu" if DEVICE == "cpu" else DEVICE)
        wide = wide.as_strided(key.shape, strides)
        wide.copy_(key)
        assert torch.equal(attend(replace(inputs, key=wide), SMALL).output, attend(inputs, SMALL).output)


def copied(odd: str) -> tuple[list[Tensor], list[bool]]:
    """Output and gradients of a call of which one tensor begins elsewhere, and which groups of tensors the hardware copies."""
    from tfkit_fused import launch
    from tfkit_fused.attend import attend

    asked: list[bool] = []
    describes = launch._describes
    case = Case(
        B=2, H=4, G=2, Q=70, K=90, D=24, V=16, dtype="float16", offset=20, causal=True, key_lengths=(90, 33), gradients=True
    )
    inputs = case.inputs(DEVICE)
    query, key, value = (moved(getattr(inputs, each), each == odd) for each in ("query", "key", "value"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "_describes", lambda *tensors: asked.append(describes(*tensors)) or asked[-1])
        output = attend(replace(inputs, query=query, key=key, value=value), SMALL).output
        grad = moved(case.grad_output(DEVICE).to(output), odd == "grad")
        return [output, *torch.autograd.grad(output, [query, key, value], grad)], asked


@pytest.fixture(scope="module")
def copied_alike() -> tuple[list[Tensor], list[bool]]:
    return copied("")


@pytest.mark.xdist_group("copies of tiles")  # one call serves all
@pytest.mark.parametrize("odd", ["key", "value", "query", "grad"])
def test_tiles_that_the_hardware_copies_give_the_same_bits(odd, copied_alike):
    """Rows at multiples of 16 bytes are copied by descriptors, keys with values and queries with gradients, and by addresses if
    one of the two begins elsewhere. On a CUDA device before sm_90 all are by addresses."""
    found, asked = copied(odd)
    large = tfkit_fused.INTERPRETED or torch.cuda.get_device_capability() >= (9, 0)
    keys, queries = (large and odd not in each for each in (("key", "value"), ("query", "grad")))
    assert copied_alike[1] == [large, large, large]  # forward, then twice in backward
    assert asked == [keys, keys, queries]
    for one, other in zip(copied_alike[0], found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("Q", [2, 40])
@pytest.mark.parametrize("K", [64, 300])
def test_padding_sees_no_key_in_tiles_that_need_no_mask(Q, K):
    """Few queries and many, with keys in one part and in several."""
    from tfkit_fused.attend import attend

    inputs = Case(B=2, H=4, G=2, Q=Q, K=K, D=8, V=8).inputs(DEVICE)
    lengths = torch.tensor([Q, Q - 1], device=DEVICE)
    found = attend(replace(inputs, mask=Mask(query_lengths=lengths), return_lse=True), SMALL)
    sees = torch.arange(Q, device=DEVICE) < lengths[:, None]
    assert torch.equal(found.lse.isfinite(), sees[:, None].expand(-1, 4, -1))
    assert torch.equal(found.output.any(-1), sees[:, None].expand(-1, 4, -1))


def test_queries_that_a_dense_bias_hides_take_no_part():
    from tfkit_fused.attend import attend

    case = Case(B=2, H=2, Q=20, K=40, D=8, V=8, dtype="float16", bias="dense", gradients=True)
    inputs = case.inputs(DEVICE)
    values = inputs.bias.values.detach().clone()
    values[..., 3, :] = -torch.inf
    given = replace(inputs, bias=replace(inputs.bias, values=values))
    output = attend(given, SMALL).output
    grad = case.grad_output(DEVICE).to(output)
    grad[:, :, 3] = torch.nan
    for found in torch.autograd.grad(output, [inputs.key, inputs.value], grad):
        assert found.isfinite().all()


@pytest.fixture
def specialised(launching, monkeypatch):
    """The forward pass by specialised warps, which only measuring would choose."""
    calls: list[None] = []
    from tfkit_fused import launch
    from tfkit_fused.tiles import SPECIALISED, Tiles, tiles_for

    if not tfkit_fused.INTERPRETED and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("not run: Triton makes specialised warps of this kernel on sm_90 alone; launch.py offers it there alone")
    tiles = Tiles(32, 32, 12, 2) if tfkit_fused.INTERPRETED else Tiles(*SPECIALISED[0])
    launching(tiles_for=lambda kernel, *of: (tiles,) if kernel == "forward" else tiles_for(kernel, *of))
    kernel = launch.specialised_kernel
    monkeypatch.setattr(launch, "specialised_kernel", lambda *of: calls.append(kernel(*of)))
    yield
    assert calls


@pytest.mark.parametrize("lengths", [(None, None), ((90, 33), None), ((0, 64), (70, 9)), (None, (0, 50)), ((-7, 2**40), None)])
@pytest.mark.parametrize(("D", "V", "G"), [(24, 16, 2), (8, 64, 4)])
def test_specialised_warps_are_right(lengths, D, V, G, specialised):
    from tfkit_fused.attend import attend

    key_lengths, query_lengths = lengths
    case = Case(
        B=2, H=4, G=G, Q=70, K=90, D=D, V=V, dtype="float16", key_lengths=key_lengths, query_lengths=query_lengths,
        gradients=True,
    )  # fmt: skip
    options = tfkit_fused.FusedOptions(tuned="off")
    ratios(case, options)
    found, rows = attend(replace(case.inputs(DEVICE), return_lse=True), options), torch.arange(case.Q)
    of_keys, of_queries = torch.tensor(key_lengths or [case.K] * 2), torch.tensor(query_lengths or [case.Q] * 2)
    sees = (of_keys > 0)[:, None] & (rows < of_queries[:, None])
    assert torch.equal(found.lse.isneginf().cpu(), ~sees[:, None].expand(-1, case.H, -1))
    assert not found.output[found.lse.isneginf()].any()


def test_specialised_warps_hand_a_nan_on(specialised):
    from tfkit_fused.attend import attend

    inputs = Case(Q=70, K=90, D=8, V=8, dtype="float16").inputs(DEVICE)
    inputs.query[0, 0, 1, 0] = torch.nan
    found = attend(replace(inputs, return_lse=True), tfkit_fused.FusedOptions(tuned="off"))
    assert found.output[0, 0, 1].isnan().all()
    assert found.lse[0, 0, 1].isnan()
    assert not found.output[0, 0, 0].isnan().any()


EVEN = Case(B=2, H=4, G=2, Q=70, K=90, D=24, V=16, dtype="float16", key_lengths=(90, 33))


@pytest.mark.parametrize(("changes", "offered"), [
    ({}, True), ({"query_lengths": (70, 9)}, True), ({"offset": 3}, True), ({"causal": True, "offset": 20}, False),
    ({"window": (None, 3), "offset": 0}, False), ({"bias": "linear", "offset": 0}, False), ({"softcap": 3.0}, False),
    ({"dropout": 0.1}, False), ({"key_visible": "coins"}, False), ({"scale": -0.1}, False), ({"Q": 64}, False),
    ({"V": 136}, False), ({"V": 128}, True), ({"D": 20}, False),
])  # fmt: skip
def test_specialised_warps_are_offered_where_all_queries_see_the_same_keys(changes, offered, launching):
    """After the tiles that count unmeasured, on an H100."""
    from tfkit_fused.attend import attend
    from tfkit_fused.tiles import SPECIALISED, Tiles, tiles_for

    asked: dict[str, tuple[Tiles, ...]] = {}

    class Heard:
        def chosen(self, call_class, tiles, measure, launched, results):
            asked[call_class] = tiles
            return tiles[0]

    launching(hopper=True, tuner_of=lambda device: Heard(), tiles_for=lambda *of: (*tiles_for(*of), Tiles(64, 32)))
    attend(replace(EVEN, **changes).inputs(DEVICE), tfkit_fused.FusedOptions())
    ((name, tiles),) = asked.items()
    assert [each.shape for each in tiles if each.is_specialised] == [*SPECIALISED] * offered
    assert not tiles[0].is_specialised
    assert name.endswith(" specialised") == offered


BLIND = {
    "all": Mask(causal=True, offset=-100),
    "all of a short row": Mask(window=(3, None), offset=10, key_lengths=torch.tensor([5, 90])),
    "all of a short row, by both sides": Mask(window=(3, 3), offset=10, key_lengths=torch.tensor([5, 90])),
    "before the first that sees one": Mask(causal=True, offset=-9),
    "after the last": Mask(window=(5, None), offset=60),
    "after the last of a short row": Mask(window=(5, None), offset=20, key_lengths=torch.tensor([31, 90])),
    "padding": Mask(causal=True, offset=0, query_lengths=torch.tensor([61, 0])),
    "whole rows of the batch": Mask(causal=True, offset=0, key_lengths=torch.tensor([31, 0])),
}


@pytest.mark.parametrize("which", BLIND)
def test_queries_that_see_no_key_take_no_part_whatever_their_numbers_are(which):
    from tfkit_fused.attend import attend

    case = Case(B=2, H=2, Q=70, K=90, D=8, V=8, dtype="float16", gradients=True)
    inputs = case.inputs(DEVICE)
    mask = Mask(**{name: each.to(DEVICE) if isinstance(each, Tensor) else each for name, each in vars(BLIND[which]).items()})
    blind = attend(replace(inputs, mask=mask, return_lse=True), SMALL).lse[..., None].isinf().expand_as(inputs.query)
    found = []
    for number in (0.0, torch.nan):
        query = inputs.query.detach().masked_fill(blind, number).requires_grad_()
        output = attend(replace(inputs, mask=mask, query=query), SMALL).output
        grad = case.grad_output(DEVICE).to(output).masked_fill(blind, number)
        found.append([output, *torch.autograd.grad(output, [query, inputs.key, inputs.value], grad)])
    assert blind.any()
    for zeros, nans in zip(*found, strict=True):
        assert torch.equal(zeros, nans)


def moved(tensor: Tensor, odd: bool) -> Tensor:
    """The numbers of a tensor, contiguous, from a multiple of 16 bytes on or from the next number on."""
    held = torch.empty(tensor.numel() + odd, dtype=tensor.dtype, device=tensor.device)[int(odd) :].view(tensor.shape)
    return held.copy_(tensor.detach()).requires_grad_()


@pytest.mark.parametrize("lengths", [(-7, 0), (53, 54), (2**62, -(2**62)), (1, 2**31)])
def test_lengths_beyond_either_end_mean_the_nearest(lengths):
    case = replace(TWO_HEADS, key_lengths=lengths, query_lengths=None)
    ratios(case)
    ratios(replace(case, query_lengths=lengths))


def test_tensors_whose_rows_are_not_one_behind_another_are_copied(monkeypatch):
    """Queries, keys, values and the gradient of the output with stride 1 along the length; others are read where they are."""
    from tfkit_fused import launch

    case = replace(TWO_HEADS, D=16, V=16)
    inputs = case.inputs(DEVICE)
    given = [each.detach().mT.contiguous().mT.requires_grad_() for each in (inputs.query, inputs.key, inputs.value)]
    seen = []
    rows = launch._rows
    monkeypatch.setattr(launch, "_rows", lambda tensor: seen.append(tensor) or rows(tensor))
    from tfkit_fused.attend import attend

    found = []
    for query, key, value in (given, (inputs.query, inputs.key, inputs.value)):
        seen.clear()
        output = attend(replace(inputs, query=query, key=key, value=value), SMALL).output
        grad = case.grad_output(DEVICE).to(output)
        grad = grad.mT.contiguous().mT if query is given[0] else grad
        found.append([output, *torch.autograd.grad(output, [query, key, value], grad)])
        assert seen
        assert all(each.stride(3) == 1 for each in seen)
    assert any(each.data_ptr() == inputs.key.data_ptr() for each in seen)
    for copied, plain in zip(*found, strict=True):
        assert torch.equal(copied, plain)


def test_a_tensor_of_more_than_2_to_the_31_numbers_is_addressed_right():
    """Rows 2^21 numbers apart: the last of 1,100 lies beyond what 32 bits can say, of memory that is not touched in between."""
    from tfkit_fused.attend import attend

    draw = torch.Generator().manual_seed(0)
    small = torch.randn(1, 1, 1100, 16, generator=draw).half()
    wide = torch.empty(1100 * 2**21, dtype=torch.float16, device=DEVICE).as_strided((1, 1, 1100, 16), (0, 0, 2**21, 1))
    wide.copy_(small)
    small = small.to(DEVICE)
    query = torch.randn(1, 1, 2, 16, generator=draw).half().to(DEVICE)
    options = tfkit_fused.FusedOptions(tile_keys=128)
    far = attend(AttentionInputs(query, wide, wide, Mask(), 0.25), options).output
    assert torch.equal(far, attend(AttentionInputs(query, small, small, Mask(), 0.25), options).output)


@pytest.mark.parametrize("bias", ["linear", "distance"])
def test_no_tensor_of_scores_is_made_for_a_bias_by_position(bias, monkeypatch):
    """The largest tensor that the launches make grows with L, not with L^2."""
    from tfkit_fused.attend import attend

    made = []

    def noted(function):
        return lambda *arguments, **options: made.append(function(*arguments, **options)) or made[-1]

    for owner, name in (
        (Tensor, "new_empty"),
        (Tensor, "new_zeros"),
        (torch, "empty"),
        (torch, "zeros"),
        (torch, "empty_like"),
    ):
        monkeypatch.setattr(owner, name, noted(getattr(owner, name)))
    sizes = []
    for length in (32, 64):
        case = replace(
            TWO_HEADS, B=1, Q=length, K=length, offset=0, key_lengths=None, query_lengths=None, bias=bias, bias_gradient=True
        )
        output = attend(case.inputs(DEVICE), SMALL).output
        made.clear()
        output.sum().backward()
        sizes.append(max(tensor.numel() for tensor in made))
    assert 0 < sizes[1] <= 2.2 * sizes[0]


def test_the_same_call_gives_the_same_bits():
    from tfkit_fused.attend import attend

    case = replace(FULL, bias="distance", bias_gradient=True)
    runs = []
    for _ in range(2):
        inputs = case.inputs(DEVICE)
        leaves = [inputs.query, inputs.key, inputs.value, inputs.bias.values]
        output = attend(inputs, SMALL).output
        runs.append([output, *torch.autograd.grad(output, leaves, case.grad_output(DEVICE))])
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_the_log_sum_exp_sends_its_gradient_to_queries_and_keys():
    from tfkit_fused.attend import attend

    inputs = replace(FULL, dtype="float32").inputs(DEVICE)
    lse = attend(replace(inputs, return_lse=True), SMALL).lse
    seen = lse.isfinite()
    got = torch.autograd.grad(lse[seen].sum(), [inputs.query, inputs.key])
    shown = reference(inputs).visible
    query, key = (tensor.detach().double().requires_grad_() for tensor in (inputs.query, inputs.key))
    scores = inputs.scale * query @ key.repeat_interleave(2, 1).mT
    wanted = torch.logsumexp(scores.masked_fill(~shown.to(scores.device), -1e300), -1)[seen].sum()
    for one, other in zip(got, torch.autograd.grad(wanted, [query, key]), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
