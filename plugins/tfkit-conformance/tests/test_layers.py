"""Each layer is the first to see the mutant that is made for it, and says in words which row, key and head are wrong."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import count

import pytest
import torch

from attention_calls import BY_NAME as CALLS, typed
from kill_matrix.correct_kernels import CORRECT_KERNELS, classed
from small_backend import changing
from suite_reports import MUTANTS
from tfkit.plugin import AttentionOutput, Numerics
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.evaluated import Evaluated
from tfkit_conformance.attention.table import CASES
from tfkit_conformance.finding import Inconclusive, Violation
from tfkit_conformance.mutants.kernel import entry_of
from tfkit_conformance.mutants.kernel.kernel import CAPABILITIES, Kernel
from tfkit_conformance.suite import layers
from tfkit_conformance.suite.layers import LAYERS, within

PLAIN = Case(B=2, H=4, G=2, Q=5, K=7, D=8, V=6, seed=3)
WITH_GRADIENTS = replace(PLAIN, gradients=True)
CAUSAL = replace(PLAIN, causal=True, offset=1)


def subject(attend, can=CAPABILITIES):
    return backend_under_test(entry_of("tried", "a backend on trial", can), attend=attend)


def evaluated_by(layer, attend, case):
    """What a layer says of a case: its share of the bound. Raises Violation."""
    return next(each for each in LAYERS if each.name == layer).evaluate(Evaluated(subject(attend), case))


def first(attend, case):
    """The first layer that sees something, and what it says; "" where none does."""
    evaluated = Evaluated(subject(attend), case)
    for layer in LAYERS:
        try:
            layer.evaluate(evaluated)
        except Violation as violation:
            return layer.name, violation
    return "", None


def leaf_detached(name):
    """An input is cut off from the graph."""
    return lambda inputs, options: Kernel()(replace(inputs, **{name: getattr(inputs, name).detach()}))


@pytest.mark.parametrize(
    ("mutant", "case", "layer", "words"),
    [
        ("output_in_float32", replace(PLAIN, dtype="bfloat16"), "contract",
         "output is (2, 4, 5, 6) torch.float32 on cpu, expected (2, 4, 5, 6) torch.bfloat16 on cpu"),
        ("output_heads_last", PLAIN, "contract", "output is (2, 5, 4, 6) on cpu, expected (2, 4, 5, 6) on cpu"),
        ("output_nan_for_long_keys", replace(PLAIN, K=65), "contract", "output[0, 0, 0, 0] is nan"),
        ("output_detached", WITH_GRADIENTS, "contract", "the output does not require gradients although its inputs do"),
        ("scales_query_in_place", PLAIN, "contract", "an input (2, 4, 5, 8) torch.float32 was written to"),
        ("zeroes_hidden_values", replace(PLAIN, key_lengths=(3, 5)), "contract",
         "an input (2, 2, 7, 6) torch.float32 was written to"),
        ("one_key_gives_value", replace(PLAIN, K=1, G=4), "contract", "the output shares memory with an input"),
        ("reuses_output", PLAIN, "contract", "the second call wrote into the output of the first"),
        ("dropout_without_being_asked", PLAIN, "contract", "drew random numbers although dropout is 0"),
        ("asks_the_reference", PLAIN, "contract", "`tried` calls the reference that checks it"),
        ("refuses_right_windows", replace(PLAIN, window=(None, 2), offset=0), "contract", "raised BackendRefused: TFK060"),
        ("raises_in_backward", WITH_GRADIENTS, "contract",
         "its backward pass raised NotImplementedError: no gradients of grouped heads for a call that it declares"),
        ("bias_gradient_missing", replace(WITH_GRADIENTS, bias="dense", bias_gradient=True), "contract",
         "its backward pass raised RuntimeError"),
        ("masked_row_gradient_nan", replace(WITH_GRADIENTS, causal=True, offset=-2), "contract", "gradient of "),
        ("lse_missing_beside_weights", replace(PLAIN, lse=True, weights=True), "contract", "returned no log-sum-exp although"),
        ("lse_in_query_dtype", replace(PLAIN, lse=True, dtype="bfloat16"), "contract", "lse is (2, 4, 5) torch.bfloat16"),
        ("causal_one_too_many", CAUSAL, "support",
         "query row 0 of batch row 0, head 0, sees key 2; it must not (40 of 280 pairs are wrong)"),
        ("causal_one_too_few", CAUSAL, "support",
         "query row 0 of batch row 0, head 0, does not see key 1; it must (40 of 280 pairs are wrong)"),
        ("middle_key_dropped", PLAIN, "support", "query row 4 of batch row 0, head 0, does not see key 3; it must"),
        ("masked_row_first_value", replace(PLAIN, causal=True, offset=-1), "support",
         "query row 0 of batch row 0, head 0, sees key 0; it must not"),
        ("first_group_for_all", PLAIN, "support",
         "query head 2 of batch row 0 does not read key/value head 1 of its own batch row (row 0)"),
        ("mask_of_previous_row", replace(PLAIN, key_lengths=(2, 5)), "support",
         "query row 0 of batch row 0, head 0, sees key 2"),
        ("backward_mask_ignored", replace(CAUSAL, gradients=True), "support of gradients",
         "query row 0 of batch row 0, head 0, sends gradient to key 2; it must not"),
        ("backward_last_value_zero", WITH_GRADIENTS, "support of gradients",
         "query row 0 of batch row 0, head 0, does not send gradient to key 6; it must"),
        ("scale_one_percent", PLAIN, "scores", r"weights["),
        ("keys_of_previous_group", PLAIN, "scores", r"weights["),
        ("linear_sign", replace(PLAIN, bias="linear", offset=0), "scores", r"weights["),
        ("lse_base_two", replace(PLAIN, lse=True), "output", r"lse["),
        ("weights_unnormalised", replace(PLAIN, weights=True), "output", r"weights["),
        ("backward_query_two_percent", WITH_GRADIENTS, "gradients", r"gradient of query["),
        ("backward_key_unscaled", WITH_GRADIENTS, "gradients", r"gradient of key["),
        ("backward_value_two_percent", WITH_GRADIENTS, "gradients", r"gradient of value["),
        ("bias_gradient_scaled", replace(WITH_GRADIENTS, bias="dense", bias_gradient=True), "gradients", r"gradient of bias["),
    ],
    ids=lambda value: value if isinstance(value, str) and value in MUTANTS else "",
)  # fmt: skip
def test_a_mutant_is_first_killed_by_the_layer_that_names_it(mutant, case, layer, words):
    name, violation = first(MUTANTS[mutant].fresh(), case)
    assert (name, violation.check) == (layer, layer)
    assert words in violation.message


@pytest.mark.parametrize(
    ("attend", "case", "layer", "words"),
    [
        (lambda inputs, options: None, PLAIN, "contract", "returned a NoneType, expected an AttentionOutput"),
        (lambda inputs, options: AttentionOutput(None), PLAIN, "contract", "output is a NoneType, expected a tensor"),
        (lambda inputs, options: Kernel()(inputs).output, PLAIN, "contract", "returned a Tensor, expected an AttentionOutput"),
        (lambda inputs, options: {}["kernel"], PLAIN, "contract", "raised KeyError: 'kernel' (plugins/tfkit-c"),
        (changing(lambda inputs, answer: replace(answer, lse=0.0)), PLAIN, "contract", "lse is a float, expected a tensor"),
        (changing(lambda inputs, answer: replace(answer, lse=answer.lse[..., None])), replace(PLAIN, lse=True), "contract",
         "lse is (2, 4, 5, 1) torch.float32 on cpu, expected (2, 4, 5)"),
        (changing(lambda inputs, answer: replace(answer, lse=answer.lse * torch.nan)), replace(PLAIN, lse=True), "contract",
         "lse[0, 0, 0] is nan"),
        (changing(lambda inputs, answer: replace(answer, weights=None)), replace(PLAIN, weights=True), "contract",
         "returned no weights although"),
        (changing(lambda inputs, answer: replace(answer, output=answer.output * (1 + random.random()))), PLAIN, "contract",
         "the same call gave a different output the second time, by up to "),
        (leaf_detached("key"), WITH_GRADIENTS, "contract", "its backward pass raised RuntimeError"),
        (lambda inputs, options: Kernel()(replace(inputs, value=inputs.value.clamp(min=-1.0))), PLAIN, "output", "output["),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_invalid_results_are_reported(attend, case, layer, words):
    name, violation = first(attend, case)
    assert (name, violation.check) == (layer, layer)
    assert words in violation.message


@pytest.mark.parametrize("leaf", ["query", "key", "value"])
def test_an_input_written_in_the_forward_pass_is_reported_before_autograd_trips_over_it(leaf):
    def attend(inputs, options):
        answer = Kernel()(inputs)
        getattr(inputs, leaf).detach().mul_(2)
        return answer

    name, violation = first(attend, WITH_GRADIENTS)
    shape = tuple(getattr(WITH_GRADIENTS.inputs(), leaf).shape)
    assert (name, violation.message) == ("contract", f"an input {shape} torch.float32 was written to")


def test_an_input_written_in_the_backward_pass_is_reported_as_such():
    def attend(inputs, options):
        def write(grad):
            inputs.value.data.mul_(2)

        answer = Kernel()(inputs)
        answer.output.register_hook(write)
        return answer

    name, violation = first(attend, WITH_GRADIENTS)
    assert (name, violation.message) == (
        "contract", "an input (2, 2, 7, 6) torch.float32 was written to in the backward pass"
    )  # fmt: skip


def test_a_head_that_sees_what_only_another_may_is_reported_by_its_number():
    case = replace(PLAIN, visible="BHQK", seed=5)
    _, violation = first(MUTANTS["visible_of_first_head"].fresh(), case)
    b, h, i, j = violation.index
    shown = case.mask().visible
    assert h > 0
    assert shown[b, h, i, j] != shown[b, 0, i, j]
    must = "does not see" if shown[b, h, i, j] else "sees"
    assert violation.message.startswith(f"query row {i} of batch row {b}, head {h}, {must} key {j}; it must")


def test_one_wrong_key_of_many_is_found():
    case = Case(H=2, G=1, Q=3, K=300, key_lengths=(280,))
    _, violation = first(MUTANTS["key_lengths_one_too_many"].fresh(), case)
    assert violation.message.startswith("query row 0 of batch row 0, head 0, sees key 280; it must not (6 of 1800 pairs")


def test_a_nan_in_a_readout_is_reported_as_one():
    visible = torch.ones(1, 1, 2, 2, dtype=torch.bool)
    read = torch.tensor([[[[1.0, torch.nan], [1.0, 1.0]]]])
    with pytest.raises(Violation, match=re.escape("query row 0 of batch row 0, head 0, is NaN at key 1")):
        layers.compare_visibility("support", read, visible, "see")
    layers.compare_visibility("support", read.nan_to_num(0.5), visible, "see")


def test_readouts_use_wide_values_to_save_calls():
    calls = count()
    counting = changing(lambda inputs, answer: (next(calls) and None) or answer)
    case = Case(H=2, G=2, Q=2, K=130)
    layers.read_forward(Evaluated(subject(counting), case))
    assert next(calls) == 2  # 128 keys, and 2
    narrow = CAPABILITIES.model_copy(update={"head_dim": CAPABILITIES.head_dim.model_copy(update={"maximum": 32})})
    layers.read_forward(Evaluated(subject(counting, narrow), case))
    assert next(calls) == 3 + 5  # 32 keys at a time


def test_the_backward_readout_separates_the_heads_of_a_group():
    case = replace(CAUSAL, gradients=True)
    read = layers.read_backward(Evaluated(subject(Kernel()), case))
    assert torch.equal(read > 0, Evaluated(subject(Kernel()), case).visible)
    assert read.shape == (2, 4, 5, 7)


def test_gradients_are_checked_only_if_requested():
    wrong = MUTANTS["backward_query_two_percent"].fresh()
    assert evaluated_by("gradients", wrong, PLAIN) is None
    assert evaluated_by("support of gradients", MUTANTS["backward_mask_ignored"].fresh(), CAUSAL) is None
    with pytest.raises(Violation):
        evaluated_by("gradients", wrong, WITH_GRADIENTS)


def test_a_layer_gives_the_share_of_the_bound_that_is_used():
    shares = {layer.name: evaluated_by(layer.name, Kernel(), WITH_GRADIENTS) for layer in LAYERS}
    assert [name for name, share in shares.items() if share is None] == ["contract", "support", "support of gradients"]
    assert all(0 <= share <= 1 for share in shares.values() if share is not None)


def test_a_backend_is_evaluated_by_the_numerics_that_it_declares():
    case = replace(PLAIN, dtype="bfloat16", regime="large", Q=40, K=60)
    rounding = next(kernel for kernel in CORRECT_KERNELS if kernel.name == "scores_in_storage")
    wide = classed(Numerics(probabilities="accumulation"))
    assert evaluated_scores(rounding.attend, rounding.capabilities, case) <= 1
    with pytest.raises(Violation, match=r"scores: weights\["):
        evaluated_scores(rounding.attend, wide, case)


def evaluated_scores(attend, can, case):
    return layers.scores(Evaluated(subject(attend, can), case))


def test_scores_that_a_dtype_cannot_hold_are_not_evaluated():
    huge = replace(PLAIN, dtype="bfloat16", regime="huge", Q=10, K=20, D=64)
    rounding = classed(Numerics(scores="storage", query_prescaled=True))
    with pytest.raises(Inconclusive, match="some scores are too large for bfloat16"):
        evaluated_scores(Kernel(), rounding, huge)
    assert evaluated_scores(Kernel(), CAPABILITIES, huge) <= 1


def test_a_right_answer_that_a_dtype_cannot_hold_is_not_evaluated():
    case = replace(WITH_GRADIENTS, dtype="float16", regime="ties", scale=1e6)
    with pytest.raises(Inconclusive, match="the right answer is beyond the range of float16"):
        evaluated_by("output", Kernel(), case)
    assert evaluated_by("output", Kernel(), replace(case, dtype="bfloat16")) <= 1


def test_within_names_the_worst_element():
    want, bound = torch.zeros(2, 3, dtype=torch.float64), torch.full((2, 3), 0.5, dtype=torch.float64)
    got = torch.tensor([[0.1, -0.25, 0.0], [0.0, 0.0, 0.5]])
    assert within("x", "output", got, want, bound) == 1.0
    got[0, 1] = -2.0
    with pytest.raises(Violation) as raised:
        within("x", "output", got, want, bound)
    said = raised.value
    assert said.message == "output[0, 1] is -2, the reference 0: off by 2, 4 times the allowed 0.5"
    assert (said.check, said.tensor, said.index, said.got, said.want, said.bound) == ("x", "output", (0, 1), -2.0, 0.0, 0.5)


def test_the_place_of_all_errors_is_named():
    want, bound = torch.zeros(2, 4, 130, 8), torch.full((2, 4, 130, 8), 0.5)
    got = want.clone()
    got[:, 1, 64:] = 1.0
    with pytest.raises(Violation, match="; all errors are in head 1, query rows from 64 on"):
        within("x", "output", got, want, bound)
    with pytest.raises(Violation, match="; all errors are in key/value head 1, keys from 64 on"):
        within("x", "gradient of key", got, want, bound)
    got[:, 3, 5:8] = 1.0
    with pytest.raises(Violation, match="; all errors are in 2 of 4 heads, 69 of 130 query rows"):
        within("x", "output", got, want, bound)
    with pytest.raises(Violation, match=r"the allowed 0\.5$"):
        within("x", "output", want + 1, want, bound)


def test_within_rejects_infinity_nan_and_wrong_shapes():
    infinite, bound = torch.tensor([-torch.inf, 0.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    assert within("x", "lse", infinite.float(), infinite, bound) == 0.0
    for got in (torch.tensor([0.0, 0.0]), torch.tensor([-torch.inf, torch.nan]), torch.tensor([torch.inf, 0.0])):
        with pytest.raises(Violation):
            within("x", "lse", got, infinite, bound)
    with pytest.raises(Violation, match="has shape \\(1,\\), expected \\(2,\\)"):
        within("x", "lse", torch.zeros(1), infinite, bound)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [("whole", torch.float32), ("online_64", torch.bfloat16)])
def test_a_correct_backend_passes_all_layers_on_the_named_calls(name, dtype):
    kernel = next(kernel for kernel in CORRECT_KERNELS if kernel.name == name)
    tried = backend_under_test(kernel.entry, attend=kernel.attend, tf32=kernel.tf32)
    for number, case in enumerate(CASES):
        evaluated = Evaluated(tried, replace(typed(case, dtype, seed=number), lse=number % 2 == 0, weights=number % 3 == 0))
        for layer in LAYERS:
            share = layer.evaluate(evaluated)
            assert share is None or share <= 1, case.name


def test_the_table_of_calls_is_complete():
    assert len(CALLS) == len(CASES) == 49
