"""Faults at sizes that nobody thought of are found by calls around the numbers of the source. So is what is kept."""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import replace
from itertools import islice

import pytest
import torch

from tfkit.builtin.attention import eager
from tfkit.builtin.attention.entries import EAGER, SDPA
from tfkit.plugin import AttentionOutput, DenseBias, LinearBias, NoOptions, Prepared
from tfkit_conformance import Case, check_backend, replay
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.finding import Inconclusive, Violation
from tfkit_conformance.suite import conformance
from tfkit_conformance.suite.guided_calls import Guided, guided_calls, plain_calls

OPTIONS = NoOptions()


def right(inputs, **changes):
    return eager.attend(replace(inputs, **changes), OPTIONS)


def wrong(inputs):
    found = right(inputs)
    return replace(found, output=found.output * 1.5)


def many_keys(inputs, options):
    return wrong(inputs) if inputs.key.shape[2] > 613 and inputs.query.shape[2] < 4 else right(inputs)


def an_odd_head_dim(inputs, options):
    return wrong(inputs) if inputs.query.shape[3] == 84 else right(inputs)


def many_rows(inputs, options):
    B, H = inputs.query.shape[:2]
    return wrong(inputs) if B * H > 4813 else right(inputs)


def a_group_of_seven(inputs, options):
    return wrong(inputs) if inputs.query.shape[1] == 7 * inputs.key.shape[1] else right(inputs)


def a_far_offset(inputs, options):
    offset = inputs.mask.offset
    return wrong(inputs) if isinstance(offset, int) and offset > 70_001 else right(inputs)


def a_wide_window(inputs, options):
    window = inputs.mask.window
    return wrong(inputs) if window and (window[0] or 0) >= 187 else right(inputs)


def a_small_softcap(inputs, options):
    return wrong(inputs) if inputs.softcap is not None and 0.3 < inputs.softcap < 0.3003 else right(inputs)


KEPT: dict[object, torch.Tensor] = {}


def a_mask_by_its_sizes(inputs, options):
    """It keeps whether a key is visible for each size of a call."""
    mask = inputs.mask
    if mask.key_visible is not None:
        key = ("key_visible", *mask.key_visible.shape)
        mask = replace(mask, key_visible=KEPT.setdefault(key, mask.key_visible.clone()))
    return right(inputs, mask=mask)


def a_bias_by_its_address(inputs, options):
    if inputs.bias is None or not hasattr(inputs.bias, "slopes"):
        return right(inputs)
    key = (inputs.bias.slopes.data_ptr(), len(inputs.bias.slopes))
    slopes = KEPT.setdefault(key, inputs.bias.slopes.detach().clone())
    return right(inputs, bias=replace(inputs.bias, slopes=slopes + 0 * inputs.bias.slopes))


def buffers_that_come_again(inputs, options):
    found = right(inputs)
    if torch.is_grad_enabled():
        return found
    turn = KEPT.setdefault("turn", torch.zeros(1))
    turn += 1
    buffer = KEPT.setdefault((int(turn) % 3, *found.output.shape, found.output.dtype), torch.empty_like(found.output))
    return AttentionOutput(buffer.copy_(found.output), found.weights, found.lse)


def segments_of_32_bits(inputs, options):
    mask = inputs.mask
    if mask.query_segments is None:
        return right(inputs)
    narrow = (mask.query_segments.to(torch.int32), mask.key_segments.to(torch.int32))
    return right(inputs, mask=replace(mask, query_segments=narrow[0], key_segments=narrow[1]))


def the_generator_of_python(inputs, options):
    import random

    random.random()
    return right(inputs)


def weights_change_the_output(inputs, options):
    found = right(inputs)
    return replace(found, output=found.output * (1 + 2**-20)) if inputs.return_weights else found


def memory_that_nobody_wrote(inputs, options):
    found = right(inputs)
    if inputs.key.shape[2] <= 613:
        return found
    return replace(found, output=found.output + torch.empty_like(found.output) * 0.0)


def scores_of_many_softcaps(inputs, options):
    largest = inputs.scale * float((inputs.query.detach() @ inputs.key.detach()[:, :1].mT).abs().max())
    return wrong(inputs) if inputs.softcap is not None and largest > 12_345 * inputs.softcap else right(inputs)


def weights_of_many_keys_without_gradients(inputs, options):
    found = right(inputs)
    detach = found.weights is not None and inputs.key.shape[2] > 613
    return replace(found, weights=found.weights.detach()) if detach else found


def features_of_keys_cut_to_those_of_queries(inputs, options):
    score, features = inputs.score, inputs.query.shape[3]
    return right(inputs) if score is None else right(inputs, score=lambda query, key: score(query, key[..., :features]))


def slopes_by_three_digits(inputs, options):
    if not isinstance(inputs.bias, LinearBias):
        return right(inputs)
    slopes = inputs.bias.slopes
    table = KEPT.setdefault(tuple(round(slope, 3) for slope in slopes.tolist()), slopes.detach().clone())
    return right(inputs, bias=LinearBias(table + (slopes - slopes.detach())))


def windows_by_their_right_side(inputs, options):
    mask, (Q, K) = inputs.mask, (inputs.query.shape[2], inputs.key.shape[2])
    if mask.window is None or not isinstance(mask.offset, int):
        return right(inputs)
    return right(inputs, mask=replace(mask, window=KEPT.setdefault((Q, K, mask.offset, mask.window[1]), mask.window)))


def distances_by_the_low_bits_of_the_offset(inputs, options):
    mask = inputs.mask
    if isinstance(mask.offset, int):
        mask = replace(mask, offset=KEPT.setdefault((inputs.key.shape[2], mask.offset % (1 << 16)), mask.offset))
    return right(inputs, mask=mask)


def tables_of_inference_mode(inputs, options):
    size = inputs.value.shape[-1]
    ones = KEPT.setdefault((size, inputs.value.dtype), torch.ones(size, dtype=inputs.value.dtype))
    return right(inputs, value=inputs.value * ones)


def weights_that_a_later_call_writes(inputs, options):
    found = right(inputs)
    if found.weights is None or found.weights.requires_grad:
        return found
    buffer = KEPT.setdefault((*found.weights.shape, found.weights.dtype), torch.empty_like(found.weights))
    return replace(found, weights=buffer.copy_(found.weights))


def buffers_where_nothing_requires_gradients(inputs, options):
    return right(inputs) if inputs.query.requires_grad else buffers_that_come_again(inputs, options)


def many_query_rows_of_a_key_head(inputs, options):
    rows = inputs.query.shape[1] // inputs.key.shape[1] * inputs.query.shape[2]
    return wrong(inputs) if rows > 21_987 else right(inputs)


class Kept(torch.autograd.Function):
    """The identity, whose gradient lies in one of three buffers of its size."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, sent):
        turn = KEPT.setdefault("turn of gradients", torch.zeros(1))
        turn += 1
        buffer = KEPT.setdefault(("gradient", int(turn) % 3, *sent.shape, sent.dtype), torch.empty_like(sent))
        return buffer.copy_(sent)


def gradients_in_buffers(inputs, options):
    return right(inputs, key=Kept.apply(inputs.key))


def log_sum_exps_in_a_buffer(inputs, options):
    found = right(inputs)
    if found.lse is None or torch.is_grad_enabled():
        return found
    return replace(found, lse=KEPT.setdefault(("lse", *found.lse.shape), torch.empty_like(found.lse)).copy_(found.lse))


class OfAThread(torch.autograd.Function):
    """The identity, whose backward pass needs what its thread kept."""

    kept = threading.local()

    @staticmethod
    def forward(ctx, tensor):
        OfAThread.kept.factor = 1.0
        return tensor.clone()

    @staticmethod
    def backward(ctx, sent):
        return sent * getattr(OfAThread.kept, "factor", 2.0)


def a_backward_of_its_thread(inputs, options):
    return right(inputs, query=OfAThread.apply(inputs.query))


class OfTheDefaultDtype(torch.autograd.Function):
    """The identity, whose backward pass makes a number of torch's default dtype."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, sent):
        return sent * (torch.ones(()).dtype == torch.float32)


def a_backward_of_the_default_dtype(inputs, options):
    return right(inputs, query=OfTheDefaultDtype.apply(inputs.query))


class Unsaved(torch.autograd.Function):
    """The identity, whose gradient is wrong if the tensor changes before its backward pass, which is not noticed."""

    @staticmethod
    def forward(ctx, tensor):
        ctx.tensor, ctx.before = tensor.detach(), tensor.detach().clone()
        return tensor.clone()

    @staticmethod
    def backward(ctx, sent):
        return sent if torch.equal(ctx.tensor, ctx.before) else 2 * sent


def inputs_that_are_not_saved(inputs, options):
    return right(inputs, value=Unsaved.apply(inputs.value))


def lengths_by_their_ends(inputs, options):
    lengths = inputs.mask.key_lengths
    if lengths is None:
        return right(inputs)
    name = ("lengths", len(lengths), inputs.key.shape[2], inputs.query.shape[2], int(lengths.min()), int(lengths.max()))
    return right(inputs, mask=replace(inputs.mask, key_lengths=KEPT.setdefault(name, lengths.clone())))


def one_scale_for_each_size(inputs, options):
    scale = KEPT.setdefault(("scale", *inputs.query.shape, *inputs.value.shape, inputs.query.dtype), inputs.scale)
    return right(inputs, scale=scale)


def a_bias_by_pairs_for_all_rows(inputs, options):
    if not isinstance(inputs.bias, DenseBias) or inputs.bias.values.dim() < 4:
        return right(inputs)
    values = inputs.bias.values
    shared = values.shape[0] > 1 and values.shape[1] == 1 and values.shape[2] > 1 and values.shape[3] > 1
    return right(inputs, bias=DenseBias(values[:1] if shared else values))


def a_bias_with_axes_alone(inputs, options):
    if isinstance(inputs.bias, DenseBias) and inputs.bias.values.dim() == 0:
        raise IndexError("no axis")
    return right(inputs)


class IntoTheSameMemory(torch.autograd.Function):
    """The identity, whose gradient is added up in memory like that of the tensor."""

    @staticmethod
    def forward(ctx, tensor):
        ctx.strides = tensor.stride()
        return tensor.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx, sent):
        memory = torch.empty_strided(sent.shape, ctx.strides, dtype=sent.dtype).zero_()
        return memory.add_(sent) if 0 not in ctx.strides else memory.copy_(sent)


def bias_gradients_in_repeated_memory(inputs, options):
    if not isinstance(inputs.bias, DenseBias):
        return right(inputs)
    return right(inputs, bias=DenseBias(IntoTheSameMemory.apply(inputs.bias.values)))


def lengths_of_32_bits(inputs, options):
    mask = inputs.mask
    lengths = None if mask.key_lengths is None else mask.key_lengths.to(torch.int32)
    return right(inputs, mask=replace(mask, key_lengths=lengths))


def windows_of_32_bits(inputs, options):
    window = inputs.mask.window
    sides = None if window is None else tuple(None if side is None else abs(side) % 2**32 for side in window)
    return right(inputs, mask=replace(inputs.mask, window=sides))


def five_hundred_features(inputs, options):
    query = inputs.query
    return (
        right(inputs, query=torch.cat([query[..., :500], query[..., 500:] * 0], -1)) if inputs.score is None else right(inputs)
    )


def places_of_16_bits(inputs, options):
    window, keys = inputs.mask.window, inputs.key.shape[2]
    hidden = window is not None and window[0] is not None and keys > 2**15 and isinstance(inputs.mask.offset, int)
    return wrong(inputs) if hidden and inputs.mask.offset - window[0] > 2**15 else right(inputs)


def powers_of_two(inputs, options):
    found = right(inputs)
    if not isinstance(inputs.bias, DenseBias):
        return found
    return replace(found, output=found.output + 0 * float((inputs.bias.values.detach() * 1.4427).amin()))


def gradients_of_leaves_alone(inputs, options):
    leaves = {name: getattr(inputs, name) for name in ("query", "key", "value")}
    return right(inputs, **{name: leaf if leaf.is_leaf else leaf.detach() for name, leaf in leaves.items()})


def one_tensor_scaled_twice(inputs, options):
    return right(inputs, scale=inputs.scale**2) if inputs.query is inputs.key else right(inputs)


def no_garbage_collector(inputs, options):
    gc.disable()
    return right(inputs)


def a_setting_after_an_error(inputs, options):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    found = right(inputs)
    torch.set_float32_matmul_precision(before)
    return found


def the_last_visible(inputs, options):
    KEPT["visible"] = inputs.mask.visible
    return right(inputs)


def memory_by_its_version(inputs, options):
    name = ("key", inputs.key.data_ptr(), inputs.key._version, inputs.key.shape, inputs.key.stride(), inputs.key.dtype)
    if torch.is_grad_enabled() or inputs.key.is_inference():
        return right(inputs)
    for other in [other for other in KEPT if isinstance(other, tuple) and other[0] == "key" and other != name]:
        del KEPT[other]
    return right(inputs, key=KEPT.setdefault(name, inputs.key.detach().clone()))


def nothing_dropped_beside_scores(inputs, options):
    return right(inputs, dropout=0.0 if inputs.score is not None else inputs.dropout)


def another_draw_in_the_backward_pass_of_far_keys(inputs, options):
    """Of queries whose first visible key is 100 keys or more from the first."""
    (left, _), offset = inputs.mask.window or (None, None), inputs.mask.offset
    if not inputs.dropout or left is None or not isinstance(offset, int) or offset - left < 100:
        return right(inputs)
    found, state = right(inputs), torch.get_rng_state()
    torch.manual_seed(1)
    other = right(inputs)
    torch.set_rng_state(state)
    return replace(found, output=other.output + (found.output - other.output).detach())


def offsets_by_their_hash(inputs, options):
    """hash(-1) is hash(-2)."""
    mask = inputs.mask
    if isinstance(mask.offset, int):
        mask = replace(mask, offset=KEPT.setdefault((inputs.query.shape, inputs.key.shape[2], hash(mask.offset)), mask.offset))
    return right(inputs, mask=mask)


class Keeping(torch.autograd.Function):
    """What comes back is kept by the first `kind`, and given again by the second."""

    @staticmethod
    def forward(ctx, output, kind):
        ctx.kind, ctx.first = kind, []
        return output.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.first.append(grad)
        return (ctx.first[0] if ctx.kind == "first" else grad), None


def a_second_backward_pass_like_the_first(inputs, options):
    found = right(inputs)
    return replace(found, output=Keeping.apply(found.output, "first"))


class Written(torch.autograd.Function):
    """The backward pass reads the memory of the output, which the caller has."""

    @staticmethod
    def forward(ctx, output):
        result = output.clone()
        ctx.result, ctx.before = result.detach(), output.detach().clone()
        return result

    @staticmethod
    def backward(ctx, grad):
        return grad + (ctx.result - ctx.before)


def an_output_that_the_caller_changes(inputs, options):
    found = right(inputs)
    return replace(found, output=Written.apply(found.output))


def sums_in_the_default_dtype(inputs, options):
    found = right(inputs)
    default = torch.get_default_dtype()
    rounded = found.output if default == torch.float64 else found.output.to(default).to(found.output.dtype)
    return replace(found, output=rounded)


def one_tensor_of_lengths(inputs, options):
    mask = inputs.mask
    shared = mask.key_lengths is not None and mask.key_lengths is mask.query_lengths
    return right(inputs, mask=replace(mask, query_lengths=None) if shared else mask)


def a_variable_of_the_environment(inputs, options):
    os.environ["ACME_THREADS"] = "1"
    return right(inputs)


FAULTS = [
    another_draw_in_the_backward_pass_of_far_keys, log_sum_exps_in_a_buffer, a_bias_by_pairs_for_all_rows,
    a_bias_with_axes_alone, lengths_of_32_bits, windows_of_32_bits, five_hundred_features, places_of_16_bits, powers_of_two,
    gradients_of_leaves_alone, one_tensor_scaled_twice, no_garbage_collector, the_last_visible, memory_by_its_version,
    nothing_dropped_beside_scores, tables_of_inference_mode, buffers_where_nothing_requires_gradients,
    many_query_rows_of_a_key_head, memory_that_nobody_wrote, scores_of_many_softcaps,
    weights_of_many_keys_without_gradients, features_of_keys_cut_to_those_of_queries, many_keys, an_odd_head_dim, many_rows,
    a_group_of_seven, a_far_offset, a_wide_window, a_small_softcap, a_bias_by_its_address, segments_of_32_bits,
    the_generator_of_python, bias_gradients_in_repeated_memory,
]  # fmt: skip
"""Faults at sizes and features that no fixed call has."""
KEEPING = [
    gradients_in_buffers, a_backward_of_its_thread, a_backward_of_the_default_dtype, inputs_that_are_not_saved,
    lengths_by_their_ends, one_scale_for_each_size, a_setting_after_an_error,
    slopes_by_three_digits, windows_by_their_right_side, distances_by_the_low_bits_of_the_offset,
    weights_that_a_later_call_writes, a_mask_by_its_sizes, buffers_that_come_again, weights_change_the_output,
    offsets_by_their_hash, a_second_backward_pass_like_the_first,
    an_output_that_the_caller_changes, sums_in_the_default_dtype, one_tensor_of_lengths, a_variable_of_the_environment,
]  # fmt: skip
"""Faults that show after a small call of one feature."""


@pytest.fixture(autouse=True)
def what_faults_change():
    """The collector of garbage, the precision of products and the environment, which some faults leave changed."""
    yield
    os.environ.pop("ACME_THREADS", None)
    gc.enable()
    torch.set_float32_matmul_precision("highest")


def first_violation(subject, dtype="float32", calls=None):
    KEPT.clear()
    guided = Guided(subject)
    for _, case in calls or guided_calls(subject, (dtype,), "quick", 0):
        try:
            guided.check(case)
        except Inconclusive:
            continue
        except Violation as violation:
            return case, violation
    return None, None


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_beside_every_fixed_size_is_found(fault):
    case, violation = first_violation(backend_under_test(EAGER, attend=fault))
    assert violation is not None
    assert violation.check == "guided calls"
    if fault in (many_keys, many_rows, a_group_of_seven):
        KEPT.clear()
        assert replay(backend_under_test(EAGER, attend=fault), case, check="guided calls").startswith("guided calls: ")


@pytest.mark.parametrize("fault", KEEPING, ids=lambda fault: fault.__name__)
def test_what_a_kernel_keeps_shows_after_a_small_call_of_one_feature(fault):
    subject = backend_under_test(EAGER, attend=fault)
    _, violation = first_violation(subject, calls=plain_calls(subject, ("float32",)))
    assert violation is not None


@pytest.mark.slow
def test_a_prepared_mask_that_keeps_the_first_bias_is_found():
    def attend(inputs, options):
        kept = {} if inputs.prepared is None else inputs.prepared.payload
        return right(inputs, bias=kept.setdefault("bias", inputs.bias), prepared=None)

    subject = replace(
        backend_under_test(EAGER, attend=attend), prepare=lambda mask, bias, shapes, options: Prepared({}, bias is not None)
    )
    _, violation = first_violation(subject)
    assert violation is not None
    assert "with its mask prepared, after a call with another bias" in violation.message


def test_prepared_masks_that_are_kept_without_their_offset_are_found():
    kept = {}

    def prepare(mask, bias, shapes, options):
        return Prepared(kept.setdefault((shapes, mask.causal, mask.window), mask), bias is not None)

    def attend(inputs, options):
        return right(inputs, mask=inputs.mask if inputs.prepared is None else inputs.prepared.payload, prepared=None)

    subject = replace(backend_under_test(EAGER, attend=attend), prepare=prepare)
    positional = [call for call in plain_calls(subject, ("float32",)) if call[0] == "causal alone"]
    _, violation = first_violation(subject, calls=positional)
    assert violation is not None
    assert "with its mask prepared, as another was that differs in offset" in violation.message


def test_a_setting_that_changes_in_a_relation_alone_is_found():
    def attend(inputs, options):
        if inputs.dropout:
            torch.set_float32_matmul_precision("high")
        return right(inputs)

    subject = backend_under_test(EAGER, attend=attend)
    _, violation = first_violation(subject, calls=plain_calls(subject, ("float32",)))
    assert violation is not None
    assert "changed the precision of float32 products of the process from highest to high" in violation.message
    assert "in calls of the relation" in violation.message


IN_TURN = [("float32", EAGER), ("bfloat16", SDPA)]
EVERY = [(dtype, entry) for entry in (EAGER, SDPA) for dtype in sorted(entry.capabilities.dtypes)]
OTHERS = [pair for pair in EVERY if pair not in IN_TURN]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "entry"),
    [*IN_TURN, *(pytest.param(dtype, entry, marks=pytest.mark.exhaustive) for dtype, entry in OTHERS)],
    ids=lambda value: getattr(value, "name", value),
)
def test_correct_kernels_pass(dtype, entry):
    subject = backend_under_test(entry)
    some = islice(guided_calls(subject, (dtype,), "quick", 0), 400)  # about as many as `quick` makes in its time
    _, violation = first_violation(subject, calls=some)
    assert violation is None, violation and violation.message


@pytest.mark.slow
def test_a_report_names_the_call_and_what_was_read(monkeypatch):
    monkeypatch.setitem(conformance.SECONDS, "quick", 3600.0)  # a slow machine makes fewer calls
    report = check_backend(
        backend_under_test(EAGER, attend=an_odd_head_dim), dtypes=["float32"], profile="quick", stop_at_first=True
    )
    (found,) = report.findings
    assert found.check == "guided calls"
    assert "head dim 84, near 84 of the source" in found.message
    assert found.case["D"] == 84
    (check,) = [check for check in report.checks if check.name == "guided calls"]
    assert "test_guided_calls.py" in check.note
    assert "lines ran" in check.note


def test_calls_are_the_same_for_a_seed():
    subject = backend_under_test(EAGER)
    one, again, other = ([case for _, case in guided_calls(subject, ("float32",), "quick", seed)][:80] for seed in (0, 0, 1))
    assert one == again
    assert one != other
    assert all(isinstance(case, Case) and subject.accepts(case.request()) for case in one)


def test_positions_beyond_32_bits_and_edges_of_windows_are_drawn():
    drawn = [case for _, case in guided_calls(backend_under_test(EAGER), ("float32",), "quick", 0)]
    offsets = [case.offset for case in drawn if isinstance(case.offset, int)]
    assert max(offsets) > 2**31
    assert min(offsets) < -(2**24)
    assert any(max(case.offset) > 2**31 for case in drawn if isinstance(case.offset, tuple))
    edges = [case for case in drawn if case.window and case.window[0] and case.Q == 1 and isinstance(case.offset, int)]
    assert any(case.offset > case.window[0] > 100 for case in edges)
