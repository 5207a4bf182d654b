"""Every relation is broken by a mutant made for it, and says so in words; its reasons for not applying are right."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from test_uses import USES
from tfkit import load_catalogue
from tfkit.builtin.attention import eager
from tfkit.builtin.attention.entries import EAGER
from tfkit.plugin import AttentionOutput, DenseBias, Mask, NoOptions, Prepared
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.evaluated import Evaluated
from tfkit_conformance.attention.reference import visible_pairs
from tfkit_conformance.finding import Violation
from tfkit_conformance.relations import RELATIONS, fit
from tfkit_conformance.relations.call_parts import taken

PLAIN = Case(B=2, H=4, G=2, Q=5, K=7, D=8, V=6, gradients=True, lse=True, seed=3)
CAUSAL = replace(PLAIN, causal=True, offset=2)
LENGTHS = replace(PLAIN, key_lengths=(3, 6))
BY_NAME = {relation.name: relation for relation in RELATIONS}


def right(inputs, **changes):
    return eager.attend(replace(inputs, **changes), NoOptions())


def mask(**changes):
    """The right backend, on a mask with a few terms made from the call."""

    def attend(inputs, options):
        made = {name: change(inputs) for name, change in changes.items()}
        return right(inputs, mask=replace(inputs.mask, **made))

    return attend


def with_(**changes):
    """The right backend, on tensors made from the call."""
    return lambda inputs, options: right(inputs, **{name: change(inputs) for name, change in changes.items()})


def along(size, start=1.0, step=0.1):
    return start + step * torch.arange(size)


def zeros_for_nan(inputs, options):
    found = right(inputs)
    return replace(found, output=found.output.nan_to_num(0.0))


def filled(number):
    """Hidden keys get a finite number instead of minus infinity, and fully masked rows stay open."""

    def attend(inputs, options):
        B, H, Q, _ = inputs.query.shape
        shown = visible_pairs(inputs.mask, B, H, Q, inputs.key.shape[2])
        return right(inputs, mask=Mask(), bias=DenseBias(torch.where(shown, 0.0, number)))

    return attend


class Scaled(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx, tensor, factor):
        ctx.factor = factor
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Once(torch.autograd.Function):
    """The identity, whose gradient has no gradient of its own."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.detach() * 1.0


def first_key_gradient(inputs, options):
    key = torch.cat((Scaled.apply(inputs.key[:, :, :1], 1.1), inputs.key[:, :, 1:]), 2)
    return right(inputs, key=key)


def output_times(factor):
    def attend(inputs, options):
        found = right(inputs)
        return AttentionOutput(found.output * factor(inputs), found.weights, found.lse)

    return attend


def wavering(inputs, options, calls=[]):  # noqa: B006, it remembers on purpose
    calls.append(None)
    return right(inputs, scale=inputs.scale * (1.0 + 0.01 * len(calls)))


def wavering_backward(inputs, options, calls=[]):  # noqa: B006
    calls.append(None)
    return right(inputs, query=Scaled.apply(inputs.query, 1.0 + 0.01 * len(calls)))


def remembering(inputs, options, masks=[]):  # noqa: B006
    masks.append(inputs.mask)
    return right(inputs, mask=masks[-2] if len(masks) > 2 else inputs.mask)


class Shared:
    scale = 1.0


def one_buffer(inputs, options):
    Shared.scale = float(inputs.query.detach().abs().sum())
    time.sleep(0.02)  # long enough for the other thread to come in between, on a busy machine too
    return right(inputs, scale=inputs.scale * (1.0 if Shared.scale == float(inputs.query.detach().abs().sum()) else 2.0))


def drawing(inputs, options):
    torch.rand(1)
    return right(inputs)


def only_with_gradients(inputs, options):
    return right(inputs, scale=inputs.scale * (1.0 if torch.is_grad_enabled() else 1.1))


def other_when_compiled(inputs, options):
    return right(inputs, scale=inputs.scale * (1.1 if torch.compiler.is_compiling() else 1.0))


def strides_ignored(inputs, options):
    def dense(tensor):
        return tensor.as_strided(tensor.shape, torch.empty(tensor.shape).stride(), tensor.storage_offset())

    return right(inputs, query=dense(inputs.query), key=dense(inputs.key))


def tiled_heads(inputs, options):
    order = torch.arange(inputs.query.shape[1]) % inputs.key.shape[1]
    return right(inputs, key=inputs.key[:, order], value=inputs.value[:, order])


def key_needs_query(inputs, options):
    return right(inputs, key=inputs.key if inputs.query.requires_grad else inputs.key.detach() + 0 * inputs.key)


def detached_weights(inputs, options):
    found = right(inputs)
    return AttentionOutput(found.output, found.weights.detach(), found.lse)


def open_window(inputs, options):
    wide = inputs.mask.window
    return right(inputs, mask=replace(inputs.mask, window=None if wide is None else (wide[0], 0)))


later = mask(offset=lambda inputs: None if inputs.mask.offset is None else inputs.mask.offset + 1)
at_zero = mask(offset=lambda inputs: None if inputs.mask.offset is None else 0)
one_key_more = mask(key_lengths=lambda inputs: None if inputs.mask.key_lengths is None else inputs.mask.key_lengths + 1)
no_segments = mask(query_segments=lambda inputs: None, key_segments=lambda inputs: None)
no_window = mask(window=lambda inputs: None)
no_visible = mask(visible=lambda inputs: None)
no_key_visible = mask(key_visible=lambda inputs: None)
segments_in_order = mask(
    key_segments=lambda inputs: None if inputs.mask.key_segments is None else inputs.mask.key_segments.clamp(max=2)
)
clamped_query = with_(query=lambda inputs: inputs.query.clamp(max=0.5))
clamped_value = with_(value=lambda inputs: inputs.value.clamp(max=0.5))


def other_heads_when_exported(inputs, options):
    if not torch.compiler.is_exporting():
        return right(inputs)
    order = torch.arange(inputs.query.shape[1]).view(-1, inputs.key.shape[1]).t().flatten()
    return replace(right(inputs), output=right(inputs, query=inputs.query[:, order]).output[:, order.argsort()])


KILLS = {
    "again": (wavering, PLAIN),
    "after_another_call": (remembering, replace(PLAIN, key_visible="coins")),
    "two_threads": (one_buffer, PLAIN),
    "generator_left_alone": (drawing, PLAIN),
    "without_gradients": (only_with_gradients, PLAIN),
    "checkpoint": (wavering, PLAIN),
    "compiled": (other_when_compiled, PLAIN),
    "exported": (other_heads_when_exported, PLAIN),
    "prepared": (
        lambda inputs, options: right(inputs, scale=inputs.scale * (1.1 if inputs.prepared else 1), prepared=None),
        PLAIN,
    ),
    "value_times_power": (clamped_value, PLAIN),
    "value_negated": (clamped_value, PLAIN),
    "query_against_key": (clamped_query, PLAIN),
    "query_against_scale": (clamped_query, PLAIN),
    "feature_signs": (clamped_query, PLAIN),
    "poisoned_hidden_keys": (filled(-1e4), LENGTHS),
    "hidden_keys_get_no_gradient": (filled(-6.0), LENGTHS),
    "appended_hidden_keys": (one_key_more, PLAIN),
    "prepended_hidden_keys": (at_zero, CAUSAL),
    "fully_masked_rows": (filled(-1e4), PLAIN),
    "later_keys": (later, CAUSAL),
    "unseen_keys": (later, CAUSAL),
    "other_segments": (no_segments, PLAIN),
    "other_queries": (with_(query=lambda inputs: inputs.query + 0.01 * inputs.query.mean(2, keepdim=True)), PLAIN),
    "other_heads": (with_(key=lambda inputs: inputs.key + 0.01 * inputs.key.mean(1, keepdim=True)), PLAIN),
    "other_batch_rows": (with_(key=lambda inputs: inputs.key + 0.01 * inputs.key.mean(0, keepdim=True)), PLAIN),
    "layouts": (strides_ignored, PLAIN),
    "heads_written_out": (tiled_heads, PLAIN),
    "heads_permuted": (with_(query=lambda inputs: inputs.query * along(4)[:, None, None]), PLAIN),
    "batch_permuted": (with_(query=lambda inputs: inputs.query * along(2)[:, None, None, None]), PLAIN),
    "batch_split": (with_(scale=lambda inputs: inputs.scale * len(inputs.query)), PLAIN),
    "batch_invariant": (with_(scale=lambda inputs: inputs.scale * (1 + 1e-6 * len(inputs.query))), PLAIN),
    "keys_permuted": (with_(key=lambda inputs: inputs.key * along(7)[:, None]), PLAIN),
    "features_permuted": (with_(key=lambda inputs: inputs.key * along(8)), PLAIN),
    "value_features_permuted": (output_times(lambda inputs: along(6)), PLAIN),
    "keys_twice": (with_(scale=lambda inputs: inputs.scale * inputs.key.shape[2] / 7), PLAIN),
    "causal_prefix": (mask(offset=lambda inputs: inputs.key.shape[2] - inputs.query.shape[2]), replace(CAUSAL, offset=1)),
    "chunks": (at_zero, CAUSAL),
    "packed_segments": (no_segments, PLAIN),
    "keys_moved": (with_(key=lambda inputs: inputs.key.clamp(max=1.0)), PLAIN),
    "equal_values": (output_times(lambda inputs: 1.001), PLAIN),
    "values_moved": (output_times(lambda inputs: 1.001), PLAIN),
    "one_live_key": (later, replace(PLAIN, seed=4)),
    "mask_pair_by_pair": (no_visible, CAUSAL),
    "causal_as_window": (no_window, CAUSAL),
    "lengths_as_visibility": (no_key_visible, LENGTHS),
    "lengths_as_segments": (no_segments, LENGTHS),
    "segments_renamed": (segments_in_order, replace(PLAIN, segments=3)),
    "wide_window": (open_window, PLAIN),
    "key_gradients_cancel": (first_key_gradient, PLAIN),
    "value_identity": (with_(value=lambda inputs: Scaled.apply(inputs.value, 1.001)), PLAIN),
    "score_identity": (with_(query=lambda inputs: Scaled.apply(inputs.query, 1.01)), PLAIN),
    "difference_quotient": (with_(query=lambda inputs: Scaled.apply(inputs.query, 1.0001)), PLAIN),
    "fewer_gradients": (key_needs_query, PLAIN),
    "weights_carry_gradients": (detached_weights, PLAIN),
    "deterministic_backward": (wavering_backward, PLAIN),
    "not_finite": (zeros_for_nan, PLAIN),
    "double_backward": (with_(query=lambda inputs: Once.apply(inputs.query)), PLAIN),
}
WORDS = {
    "not_finite": r"output row \d of batch row \d, head \d is 0 with NaN in a query, expected NaN; .*`numerics.nan_as_zero`",
    "poisoned_hidden_keys": r"output row \d of batch row \d, head \d changed when key \d of batch row \d, key/value head \d,",
    "hidden_keys_get_no_gradient": r"gradient of key \d of batch row \d, key/value head \d is not exactly 0 although no query",
    "fully_masked_rows": r"output row \d of batch row \d, head \d is not 0 although that query sees no key",
    "later_keys": r"output row \d of batch row \d, head \d changed when keys from \d on, all later than that query,",
    "again": r"output row 0 of batch row 0, head 0 differs when the same call is made again",
    "key_gradients_cancel": r"gradients of key of batch row \d, key/value head \d do not add up to 0",
    "prepended_hidden_keys": r"from the call with three hidden keys before",
}


def subject(attend):
    can = EAGER.capabilities.model_copy(update={"batch_invariant": True})
    made = backend_under_test(replace(EAGER, capabilities=can), attend=attend)
    return replace(made, prepare=lambda mask, bias, shapes, options: Prepared(None))


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLS)
def test_a_mutant_breaks_its_relation_with_a_message(name):
    attend, case = KILLS[name]
    relation, mutant = BY_NAME[name], subject(attend)
    fitted = fit(relation, mutant, case)
    assert isinstance(fitted, Case), fitted
    with pytest.raises(Violation, match=WORDS.get(name, name)) as found:
        relation.run(Evaluated(mutant, fitted))
    assert found.value.check == name
    assert len(found.value.message.split()) > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLS)
def test_a_correct_backend_satisfies_the_relation_on_the_same_case(name):
    correct = replace(subject(lambda inputs, options: right(inputs, prepared=None)))
    relation = BY_NAME[name]
    if name == "batch_invariant":
        return  # eager is not, and does not say so
    fitted = fit(relation, correct, KILLS[name][1])
    share = relation.run(Evaluated(correct, fitted))
    assert share is None if relation.demand != "bound" and name != "weights_carry_gradients" else 0 <= share <= 1


def row_by_row(inputs, options):
    """Bits that do not depend on the batch: every batch row is computed alone."""
    rows = [right(taken(inputs, batch=torch.tensor([row])), prepared=None) for row in range(len(inputs.query))]
    lse = torch.cat([one.lse for one in rows]) if inputs.return_lse else None
    return AttentionOutput(torch.cat([one.output for one in rows]), None, lse)


@pytest.mark.parametrize("name", ["batch_invariant", "batch_split"])
def test_the_gradients_of_some_rows_of_a_large_batch_are_compared(name):
    case = replace(PLAIN, B=20, bias="dense", bias_axes="HQK", bias_gradient=True, weights=False)
    BY_NAME[name].run(Evaluated(subject(row_by_row), case))
    attend, _ = KILLS[name]
    with pytest.raises(Violation):
        BY_NAME[name].run(Evaluated(subject(attend), case))


def test_every_relation_but_those_of_dropout_has_its_mutant():
    assert {*KILLS, *(use.partition(",")[0] for use in USES)} == {relation.name for relation in RELATIONS if not relation.draws}
    assert len(BY_NAME) == len(RELATIONS)


@pytest.mark.parametrize(
    ("name", "case", "reason"),
    [
        ("keys_moved", replace(PLAIN, softcap=1.5), "a softcap"),
        ("key_gradients_cancel", replace(PLAIN, gradients=False), "no gradients"),
        ("other_queries", replace(PLAIN, Q=1), "one query"),
        ("other_heads", replace(PLAIN, G=1), "one key/value head"),
        ("again", replace(PLAIN, dropout=0.1), "dropout"),
    ],
)
def test_a_feature_that_voids_a_relation_is_named(name, case, reason):
    assert fit(BY_NAME[name], subject(None), case) == reason


def test_a_relation_is_void_without_its_capability():
    poor = EAGER.capabilities.model_copy(update={"mask_terms": frozenset({"causal"}), "dtypes": frozenset({"float32"})})
    narrow = backend_under_test(replace(EAGER, capabilities=poor))
    assert fit(BY_NAME["packed_segments"], narrow, PLAIN) == "segments is not declared"
    assert fit(BY_NAME["difference_quotient"], narrow, PLAIN) == "float64 is not declared"
    assert fit(BY_NAME["prepended_hidden_keys"], narrow, PLAIN) == "key_visible and visible are not declared"
    hidden = fit(BY_NAME["poisoned_hidden_keys"], narrow, replace(PLAIN, K=7))
    assert hidden.causal
    assert hidden.offset < 2


def test_a_relation_is_void_if_its_other_call_is_not_declared():
    even = EAGER.capabilities.model_copy(
        update={"query_length": EAGER.capabilities.query_length.model_copy(update={"multiple": 5})}
    )
    reason = fit(BY_NAME["chunks"], backend_under_test(replace(EAGER, capabilities=even)), PLAIN)
    assert reason.startswith("the other call is not declared: query length")


def test_zeros_for_nan_are_right_where_they_are_declared_and_other_numbers_never():
    declared = EAGER.capabilities.numerics.model_copy(update={"nan_as_zero": frozenset({"cpu"})})
    entry = replace(EAGER, capabilities=EAGER.capabilities.model_copy(update={"numerics": declared}))
    relation = BY_NAME["not_finite"]

    def run(attend):
        made = replace(backend_under_test(entry, attend=attend), prepare=lambda mask, bias, shapes, options: Prepared(None))
        for seed in range(4):
            relation.run(Evaluated(made, fit(relation, made, replace(PLAIN, seed=seed))))

    run(zeros_for_nan)
    run(lambda inputs, options: right(inputs, prepared=None))
    with pytest.raises(Violation, match=r"is 0\.5 with NaN in a query, expected NaN or 0"):
        run(lambda inputs, options: replace(right(inputs), output=right(inputs).output.nan_to_num(0.5)))


@pytest.mark.parametrize(
    "change", [{"causal": True, "offset": 2}, {"key_lengths": (3, 6)}, {"Q": 40, "K": 50}, {"bias": "dense"}]
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["eager", "sdpa", "flex"])
def test_shipped_backends_do_not_hide_nan_on_the_processor(name, dtype, change):
    made, relation = backend_under_test(load_catalogue().find("backend", name)), BY_NAME["not_finite"]
    assert "cpu" not in made.capabilities.numerics.nan_as_zero
    for seed in range(2):
        fitted = fit(relation, made, replace(PLAIN, dtype=dtype, lse=False, seed=seed, **change))
        assert isinstance(fitted, Case), fitted
        relation.run(Evaluated(made, fitted))
