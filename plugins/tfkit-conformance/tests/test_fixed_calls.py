"""Faults that a draw seldom meets are found by the calls that are always made; correct kernels pass them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from kill_matrix.correct_kernels import CORRECT_KERNELS, whole
from small_backend import small
from tfkit.builtin.attention import eager
from tfkit.plugin import DenseBias, LinearBias, Mask, shapes_of, visible
from tfkit_conformance import check_backend
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.finding import Inconclusive, Violation
from tfkit_conformance.suite import conformance
from tfkit_conformance.suite.fixed_calls import check_fixed_call, fixed_calls
from tfkit_conformance.suite.grade import check_grade
from tiers import EVERY_CASE

WHOLE = CORRECT_KERNELS[0]


def seen(call, change):
    """The call with another mask; `change` gets the pairs that are visible (B,H,Q,K) and returns others."""
    B, H, Q, _ = call.query.shape
    K = call.key.shape[2]
    shown = visible(call.mask, shapes_of(call))
    shown = torch.ones(B, H, Q, K, dtype=torch.bool) if shown is None else shown.expand(B, H, Q, K).clone()
    return whole(replace(call, mask=Mask(visible=change(shown), offset=call.mask.offset)))


def causal_slips_in_the_third_query_block_of_96(call, options):
    def change(shown):
        if call.mask.causal and shown.shape[2] > 192 and not call.mask.window:
            rows = torch.arange(192, shown.shape[2])
            shown[:, :, rows, (rows + 1).clamp(max=shown.shape[3] - 1)] = True
        return shown

    return seen(call, change)


def one_key_in_the_last_block_of_256_is_lost(call, options):
    def change(shown):
        if shown.shape[3] % 256 == 1 and shown.shape[3] > 256:
            shown[..., -1] = False
        return shown

    return seen(call, change)


def a_full_last_block_is_read_twice(call, options):
    value = call.value
    if value.shape[2] % 64 == 0:
        value = value * torch.where(torch.arange(value.shape[2]) < value.shape[2] - 64, 1.0, 2.0)[:, None]
    return whole(replace(call, value=value))


def heads_from_32_on_read_the_first(call, options):
    key = call.key
    if key.shape[1] > 32:
        key = torch.cat([key[:, :32], key[:, :1].expand(-1, key.shape[1] - 32, -1, -1)], 1)
    return whole(replace(call, key=key))


def batch_rows_are_numbered_by_a_byte(call, options):
    return whole(replace(call, key=call.key[torch.arange(call.key.shape[0]) % 256]))


def the_last_of_33_features_is_ignored(call, options):
    query = call.query
    if query.shape[-1] % 32 == 1 and query.shape[-1] > 1:
        query = torch.cat([query[..., :-1], torch.zeros_like(query[..., -1:])], -1)
    return whole(replace(call, query=query))


def value_dims_above_200_are_cut(call, options):
    keep = (torch.arange(call.value.shape[-1]) < 200).to(call.value)
    return whole(replace(call, value=call.value * keep))


def a_square_mask_is_taken_for_rows_of_the_batch(call, options):
    shown = call.mask.visible
    if shown is not None and shown.dim() == 2 and shown.shape[0] == call.query.shape[0]:
        return whole(replace(call, mask=replace(call.mask, visible=shown[:, None, None, :])))
    return whole(call)


def segments_are_bytes(call, options):
    mask = call.mask
    if mask.query_segments is None:
        return whole(call)
    low = {name: getattr(mask, name) & 255 for name in ("query_segments", "key_segments")}
    return whole(replace(call, mask=replace(mask, **low)))


def segments_are_halves(call, options):
    mask = call.mask
    if mask.query_segments is None:
        return whole(call)
    low = {name: getattr(mask, name) & 65535 for name in ("query_segments", "key_segments")}
    return whole(replace(call, mask=replace(mask, **low)))


def positions_are_float32(call, options):
    if call.mask.window is None or isinstance(call.mask.offset, torch.Tensor):
        return whole(call)
    left, right = call.mask.window

    def change(shown):
        position = torch.tensor(float(call.mask.offset)) + torch.arange(shown.shape[2], dtype=torch.float32)
        keys = torch.arange(shown.shape[3])
        away = keys[None].float() - position[:, None]
        inside = (away >= -(left if left is not None else 1e9)) & (away <= (right if right is not None else 1e9))
        return inside.expand(shown.shape)

    return seen(call, change)


def positions_of_rows_are_int32(call, options):
    offset = call.mask.offset
    if isinstance(offset, torch.Tensor):
        call = replace(call, mask=replace(call.mask, offset=offset.int().long()))
    return whole(call)


def keys_are_counted_in_the_type_of_their_lengths(call, options):
    lengths = call.mask.key_lengths
    if lengths is not None:
        shown = torch.arange(call.key.shape[2]).to(lengths.dtype) < lengths[:, None]
        call = replace(call, mask=replace(call.mask, key_lengths=None, key_visible=shown))
    return whole(call)


def one_query_of_many_heads_reads_other_heads(call, options):
    if call.query.shape[2] == 1 and call.query.shape[1] > 8 * call.key.shape[1]:
        call = replace(call, key=call.key.roll(1, 1))
    return whole(call)


def int32_lengths_are_read_as_int64(call, options):
    lengths = call.mask.key_lengths
    if lengths is not None and lengths.dtype == torch.int32 and lengths.numel() % 2 == 0:
        lengths = lengths.contiguous().view(torch.int64).repeat_interleave(2)
    return whole(replace(call, mask=replace(call.mask, key_lengths=lengths)))


def a_bias_is_read_as_if_it_were_contiguous(call, options):
    if isinstance(call.bias, DenseBias):
        values = call.bias.values
        flat = torch.as_strided(values, values.shape, torch.empty(values.shape).stride())
        return whole(replace(call, bias=DenseBias(flat)))
    return whole(call)


def the_running_maximum_begins_at_a_finite_number(call, options):
    found = whole(call)
    if isinstance(call.bias, DenseBias):
        low = call.bias.values.amax((-1, -2), keepdim=True) < -1e4
        return replace(found, output=torch.where(low, 0.0, found.output))
    return found


def the_form_without_gradients_differs_from_300_queries_on(call, options):
    found = whole(call)
    if call.query.shape[2] > 300 and not torch.is_grad_enabled():
        return replace(found, output=found.output.roll(1, 2))
    return found


def the_form_with_the_lse_differs_from_300_keys_on(call, options):
    found = whole(call)
    if call.key.shape[2] > 300 and call.return_lse:
        return replace(found, output=1.001 * found.output)
    return found


def few_queries_of_many_rows_see_all_keys(call, options):
    """Only where a kernel has chosen two matrix products, as it does for steps of decoding."""
    (B, _, Q, D), K = call.query.shape, call.key.shape[2]
    products = B * call.key.shape[1] >= 128 and Q <= 8 and Q * K * D >= 400 and not torch.is_grad_enabled()
    return whole(replace(call, mask=Mask(), bias=None) if products else call)


def one_query_of_many_rows_loses_its_last_key(call, options):
    if call.query.shape[0] > 128 and call.query.shape[2] == 1 and call.mask == Mask() and call.key.shape[2] > 8:
        call = replace(call, key=call.key[:, :, :-1], value=call.value[:, :, :-1])
    return whole(call)


def heads_are_not_shared_where_they_equal_the_features(call, options):
    if call.query.shape[1] == call.query.shape[3] > call.key.shape[1] > 1:
        call = replace(call, key=call.key.roll(1, 1))
    return whole(call)


def a_bias_of_heads_and_keys_is_in_the_order_of_groups(call, options):
    """Without gradients, where heads share keys."""
    heads, groups = call.query.shape[1], call.key.shape[1]
    if isinstance(call.bias, DenseBias) and heads > groups and not torch.is_grad_enabled():
        values = call.bias.values
        if values.dim() == 4 and values.shape[1] > 1 and values.shape[2] == 1 and values.shape[3] > 1:
            order = torch.arange(heads).view(groups, -1).mT.flatten()
            return whole(replace(call, bias=DenseBias(values[:, order])))
    return whole(call)


def scores_above_the_range_of_float16_are_cut(call, options):
    if isinstance(call.bias, DenseBias):
        return whole(replace(call, bias=DenseBias(call.bias.values.clamp(max=6.0e4))))
    return whole(call)


def a_hidden_block_of_64_keys_ends_a_row(call, options):
    if call.mask.visible is None:
        return whole(call)

    def change(shown):
        blocks = shown.split(64, -1)
        hidden = [not bool(block.any()) for block in blocks]
        if True in hidden:
            shown[..., 64 * hidden.index(True) :] = False
        return shown

    return seen(call, change)


class BeforeTheScale(torch.autograd.Function):
    """The gradient of a query is rounded to its dtype before it is multiplied by the scale."""

    @staticmethod
    def forward(ctx, query, scale):
        ctx.scale = scale
        return query.clone()

    @staticmethod
    def backward(ctx, grad):
        return (grad.double() / ctx.scale).to(grad.dtype) * ctx.scale, None


def gradients_of_queries_overflow_before_they_are_scaled(call, options):
    return whole(replace(call, query=BeforeTheScale.apply(call.query, call.scale)))


def weights_below_the_range_of_float32_are_zero(call, options):
    if isinstance(call.bias, DenseBias) and call.mask == Mask():
        low = call.bias.values - call.bias.values.amax(-1, keepdim=True) < -87.0
        return whole(replace(call, mask=Mask(visible=~low)))
    return whole(call)


IN_ANOTHER_DTYPE = {
    gradients_of_queries_overflow_before_they_are_scaled: "float16",
    weights_below_the_range_of_float32_are_zero: "float64",
}
FAULTS = [fault for fault in list(globals().values()) if getattr(fault, "__code__", None) is not None
          and fault.__code__.co_varnames[:2] == ("call", "options") and fault is not whole]  # fmt: skip


IN_LONG_CALLS = (
    one_key_in_the_last_block_of_256_is_lost,
    batch_rows_are_numbered_by_a_byte,
    few_queries_of_many_rows_see_all_keys,
    one_query_of_many_rows_loses_its_last_key,
    a_hidden_block_of_64_keys_ends_a_row,
)


def subject(attend, entry=WHOLE.entry):
    return backend_under_test(entry, attend=attend)


def check_all(under_test, dtype, longest=False):
    """Makes the calls, the longest one if asked; gives the number of those that could be judged."""
    judged = 0
    for each in fixed_calls(under_test, dtype):
        if longest or not each.long:
            with suppress(Inconclusive):  # scores that are too large for the bound of this numerics class
                check_fixed_call(under_test, each)
                judged += 1
    return judged


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_at_a_size_or_in_a_form_is_found(fault):
    with pytest.raises(Violation, match="fixed calls: with "):
        check_all(subject(fault), IN_ANOTHER_DTYPE.get(fault, "float32"), longest=fault in IN_LONG_CALLS)


def test_far_distances_are_exact_in_float64_and_the_quick_profile_asks_for_it(reduce):
    def rounded(call, options):
        if isinstance(call.bias, LinearBias):
            offset = torch.as_tensor(call.mask.offset).view(-1, 1, 1, 1)
            away = (torch.arange(call.key.shape[2]) - offset - torch.arange(call.query.shape[2])[:, None]).float().abs()
            call = replace(call, bias=DenseBias(-call.bias.slopes[:, None, None].double() * away))
        return whole(call)

    reduce(without=("check_cells", "check_relations", "guided_calls"))
    report = check_backend(subject(rounded), profile="quick", stop_at_first=True)
    [finding] = [found for found in report.findings if found.check == "fixed calls"]
    assert "with positions from 16777217 on" in finding.message


@pytest.mark.parametrize(
    "change",
    [
        lambda call: {"score": None},
        lambda call: {"score": call.score and (lambda query, key: call.scale * call.score(query, key))},
        lambda call: {"score": call.score and (lambda query, key: call.score(query, key.roll(1, 1)))},
    ],
    ids=["ignored", "scaled again", "with keys of other heads"],
)
def test_a_fault_of_a_declared_score_function_is_found(change, catalogue):
    def faulty(call, options):
        return eager.attend(replace(call, **change(call)), options)

    with pytest.raises(Violation, match="fixed calls: with a score function"):
        check_all(subject(faulty, catalogue.find("backend", "eager")), "float32")


@pytest.mark.slow
def test_keys_beyond_those_of_drawn_cases_are_held_to_the_bound():
    def never_reads_beyond_600_keys(call, options):
        return whole(replace(call, key=call.key[:, :, :600], value=call.value[:, :, :600]))

    with pytest.raises(Violation, match="times the allowed"):
        check_grade(subject(never_reads_beyond_600_keys), "float32")


def dtypes_of(number, kernel):
    """Of a kernel that rounds to TF32 float32; of another one a half and a wide dtype, in turn; or all that it declares."""
    if EVERY_CASE:
        return sorted(kernel.capabilities.dtypes)
    wide = "float32" if kernel.tf32 else ("float32", "float64")[number // 2 % 2]
    return [dtype for dtype in (("bfloat16", "float16")[number % 2], wide) if dtype in kernel.capabilities.dtypes]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", CORRECT_KERNELS, ids=lambda kernel: kernel.name)
def test_correct_kernels_pass(kernel):
    own = replace(backend_under_test(kernel.entry, attend=kernel.attend), tf32=kernel.tf32)
    for dtype in dtypes_of(CORRECT_KERNELS.index(kernel), kernel):
        assert check_all(own, dtype) > 10


@pytest.mark.parametrize(("slower", "left_out"), [(8, False), (1e9, True)])
def test_long_calls_are_left_out_of_a_slow_kernel_and_the_report_says_so(monkeypatch, slower, left_out, reduce):
    monkeypatch.setattr(conformance, "SLOWER", slower)
    reduce(without=("check_cells", "check_relations"))
    [check] = [each for each in check_backend(small(), profile="quick").checks if each.name == "fixed calls"]
    assert check.status == "passed"
    assert check.note.startswith("long calls are left out") == left_out
