"""A backend that answers what it does not declare is found, feature by feature; one that refuses is not."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from small_backend import SMALL, changing, declaring, guarded, small
from tfkit import BackendRefused
from tfkit.builtin.attention.entries import EAGER, FLEX, SDPA
from tfkit.inspection import MASK_TERMS
from tfkit.plugin import AttentionOutput, Range, require_capabilities
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.case import DTYPES
from tfkit_conformance.finding import OutOfTime, Violation
from tfkit_conformance.limit import time_limit
from tfkit_conformance.mutants.kernel import entry_of
from tfkit_conformance.mutants.kernel.kernel import CAPABILITIES, Kernel
from tfkit_conformance.suite.declaration import check_refusals, plain_case, undeclared

NOT_OFFERED = declaring(bias_kinds={"dense"})
CAN_DO = declaring(
    mask_terms=frozenset(MASK_TERMS), tensor_offset=True, bias_kinds={"dense", "linear", "distance"},
    bias_gradient={"dense", "linear", "distance"}, dropout=True, weights="detached", lse=True, grouped_queries=True,
    softcap=True,
    value_dim_differs=True, dtypes=frozenset(DTYPES), scores={"*"}, head_dim=Range(),
)  # fmt: skip
"""Everything, so that a guard of it lets everything through."""


def answering(feature, can=NOT_OFFERED):
    """The small backend, whose guard has a hole: it answers calls with one feature."""
    check = require_capabilities("small", can)
    hole = {
        **{f"mask term {term}": (lambda inputs, term=term: term in inputs.mask.terms()) for term in MASK_TERMS},
        "a linear bias": lambda inputs: type(inputs.bias).__name__ == "LinearBias",
        "a distance bias": lambda inputs: type(inputs.bias).__name__ == "DistanceBias",
        "the gradient of a dense bias": lambda inputs: type(inputs.bias).__name__ == "DenseBias",
        "an offset per batch row": lambda inputs: isinstance(inputs.mask.offset, torch.Tensor),
        "softcap": lambda inputs: inputs.softcap is not None,
        "dropout": lambda inputs: inputs.dropout > 0,
        "the log-sum-exp": lambda inputs: inputs.return_lse,
        "attention weights": lambda inputs: inputs.return_weights,
        "fewer key/value heads than query heads": lambda inputs: inputs.query.shape[1] != inputs.key.shape[1],
        "a value dim other than head_dim": lambda inputs: inputs.query.shape[3] != inputs.value.shape[3],
        "head_dim 9": lambda inputs: inputs.query.shape[3] == 9,
        "head_dim 32": lambda inputs: inputs.query.shape[3] == 32,
        "a score function other than the dot product": lambda inputs: inputs.score is not None,
        **{f"dtype {name}": (lambda inputs, dtype=dtype: inputs.query.dtype == dtype) for name, dtype in DTYPES.items()},
    }[feature]

    def attend(inputs, options):
        if not hole(inputs):
            check(inputs)
        return Kernel()(replace(inputs, score=None))

    return backend_under_test(entry_of("small", "with a hole", can), attend=attend)


FEATURES = [
    *[f"mask term {term}" for term in MASK_TERMS if term != "causal"],
    "the gradient of a dense bias", "a linear bias", "a distance bias", "an offset per batch row", "dropout",
    "attention weights", "the log-sum-exp", "fewer key/value heads than query heads", "softcap",
    "a value dim other than head_dim",
    "dtype float64", "dtype bfloat16", "dtype float16", "head_dim 9", "head_dim 32",
]  # fmt: skip


def test_every_undeclared_feature_is_tried_once():
    calls = list(undeclared(small(can=NOT_OFFERED), "float32"))
    assert [feature for feature, _ in calls] == FEATURES
    for feature, case in calls:
        evaluated = small(can=NOT_OFFERED).evaluate(case.request())
        assert evaluated.refused, feature


def test_no_refusal_is_tried_if_all_is_declared():
    assert list(undeclared(small(can=CAN_DO), "float32")) == []
    assert check_refusals(small(can=CAN_DO), "float32") == 0


@pytest.mark.parametrize("feature", [*FEATURES, "a score function other than the dot product"])
def test_a_backend_that_answers_what_it_does_not_declare_is_found(feature):
    with pytest.raises(Violation) as raised:
        check_refusals(answering(feature), "float32")
    assert raised.value.check == "refusals"
    assert raised.value.message.startswith(f"answers a call with {feature}, which it does not declare")


def test_an_offset_per_batch_row_is_tried_with_a_window_too():
    can = declaring(mask_terms={"window"})
    with pytest.raises(Violation, match="an offset per batch row"):
        check_refusals(answering("an offset per batch row", can), "float32")


def test_a_backend_that_refuses_everything_else_passes():
    assert check_refusals(small(can=NOT_OFFERED), "float32") == len(FEATURES) + 1


def test_a_missing_undeclared_result_is_no_answer():
    """The declaration says that there are no weights and no log-sum-exp: giving none is what it says."""

    def ignoring(inputs, options):
        return Kernel()(replace(inputs, return_lse=False, return_weights=False))

    lets_through = guarded(ignoring, SMALL.model_copy(update={"lse": True, "weights": "detached"}))
    assert check_refusals(backend_under_test(entry_of("small", "quiet", SMALL), attend=lets_through), "float32") > 10


def test_an_invalid_result_counts_as_an_answer():
    for attend in (lambda inputs, options: None, lambda inputs, options: AttentionOutput(None)):
        with pytest.raises(Violation, match="answers a call with"):
            check_refusals(backend_under_test(entry_of("small", "careless", SMALL), attend=attend), "float32")


def test_a_hang_is_no_refusal():
    def hangs(inputs, options):
        while inputs.softcap is not None:
            time.sleep(0.01)
        require_capabilities("small", SMALL)(inputs)

    with pytest.raises(OutOfTime), time_limit(0.2):
        check_refusals(backend_under_test(entry_of("small", "asleep", SMALL), attend=hangs), "float32")


@pytest.mark.parametrize("entry", [EAGER, SDPA, FLEX], ids=lambda entry: entry.name)
def test_the_built_in_backends_refuse_what_they_do_not_declare(entry):
    subject = backend_under_test(entry)
    made = sum(check_refusals(subject, dtype) for dtype in ("float32", "bfloat16"))
    assert made == 2 * {"eager": 0, "sdpa": 4, "flex": 6}[entry.name]


def test_sdpa_and_flex_refuse_in_words():
    for entry, word in ((SDPA, "softcap"), (SDPA, "the log-sum-exp"), (FLEX, "attention weights"), (FLEX, "dropout")):
        subject = backend_under_test(entry)
        case = dict(undeclared(subject, "float32"))[word]
        with pytest.raises(BackendRefused, match=f"TFK060 `{entry.name}` does not declare {word}"):
            subject.call(case.inputs())


@pytest.mark.parametrize(
    ("can", "sizes"),
    [
        (CAPABILITIES, (3, 5, 8)),
        (declaring(query_length=Range(maximum=1)), (1, 5, 8)),
        (declaring(head_dim=Range(minimum=64, multiple=64), key_length=Range(minimum=64, multiple=64),
                   query_length=Range(minimum=64)), (64, 64, 64)),
        (declaring(head_dim=Range(minimum=20, multiple=20), key_length=Range(minimum=7, maximum=7)), (1, 7, 20)),
    ],
    ids=["all", "decoding", "blocky", "odd"],
)  # fmt: skip
def test_the_plain_call_is_one_that_is_declared(can, sizes):
    subject = small(can=can)
    case = plain_case(subject, "float32")
    assert sizes == (case.Q, case.K, case.D)
    assert subject.accepts(case.request())


def test_a_correct_answer_to_an_undeclared_call_is_a_finding():
    """It can do more than it says: then it should say so."""
    subject = backend_under_test(entry_of("kernel", "can do all", SMALL), attend=changing(lambda inputs, answer: answer))
    with pytest.raises(Violation, match="declare it if it is right, refuse it otherwise"):
        check_refusals(subject, "float32")
