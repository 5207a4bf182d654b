"""Every mutant is one: against the kernel that it was made from, some plain call shows it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from tfkit import BackendRefused
from tfkit.inspection import MASK_TERMS, check_request
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.compare import gradients_of, leaves_of
from tfkit_conformance.mutants import ATTENTION_MUTANTS
from tfkit_conformance.mutants.kernel.kernel import Kernel

PLAIN = Case(B=2, H=4, G=4, Q=5, K=7, D=6, V=6, gradients=True, bias_gradient=True, weights=True, lse=True)
GROUPED = replace(PLAIN, G=2, V=5)
CAUSAL = replace(PLAIN, causal=True, offset=2)
LONG = replace(GROUPED, Q=3, K=70, regime="large")
BARE = replace(PLAIN, gradients=False, bias_gradient=False, weights=False, lse=False)
MASKS = {
    "causal": [CAUSAL, replace(CAUSAL, offset=(3, -2)), replace(CAUSAL, Q=1, offset=3), replace(CAUSAL, Q=7, K=12, offset=0)],
    "window": [
        replace(PLAIN, window=(2, 1), offset=1),
        replace(PLAIN, window=(1, None), offset=2),
        replace(PLAIN, window=(1, 3), causal=True, offset=(2, 1)),
    ],
    "key_lengths": [replace(PLAIN, key_lengths=(3, 6)), replace(PLAIN, key_lengths=(0, 4)), replace(LONG, key_lengths=(65, 4))],
    "query_lengths": [replace(PLAIN, query_lengths=(2, 9)), replace(PLAIN, query_lengths=(4, 0), key_lengths=(6, 5))],
    "key_visible": [replace(PLAIN, key_visible="left"), replace(PLAIN, key_visible="coins", seed=2)],
    "segments": [replace(PLAIN, segments=3), replace(CAUSAL, segments=2)],
    "visible": [replace(PLAIN, visible="BHQK"), replace(PLAIN, visible="HK", causal=True, offset=1)],
}
CALLS = [
    PLAIN,
    replace(PLAIN, softcap=0.8),
    replace(GROUPED, softcap=0.8, bias="dense"),
    replace(PLAIN, seed=1, scale=0.7),
    replace(PLAIN, Q=7),
    GROUPED,
    LONG,
    replace(LONG, seed=1, dtype="bfloat16"),
    replace(LONG, regime="huge"),
    *[case for name in MASK_TERMS for case in MASKS[name]],
    *[
        replace(base, bias=bias, offset=offset)
        for bias in ("dense", "linear", "distance")
        for base, offset in (
            (PLAIN, 0),
            (replace(PLAIN, causal=True), (3, 1)),
            (LONG, 4),
            (replace(PLAIN, key_visible="left"), 1),
        )
    ],
    replace(PLAIN, bias="distance", bias_low=0, offset=-2),
    replace(PLAIN, bias="dense", bias_axes="HK"),
    *[replace(PLAIN, dropout=rate, seed=seed) for rate, seed in ((0.3, 0), (0.6, 1), (0.6, 2))],
    *[replace(PLAIN, layout=layout) for layout in ("heads_last", "features_first", "sliced", "expanded")],
    *[replace(PLAIN, grad_layout=layout) for layout in ("odd", "expanded")],
    *[replace(BARE, seed=seed, bias=bias, scale=0.5 + seed) for seed in (0, 1) for bias in (None, "dense")],
    replace(BARE, K=1),
    replace(BARE, key_lengths=(3, 6)),
]


TELLING = {
    "masks": lambda case: bool(case.terms()),
    "fully masked rows": lambda case: bool(case.terms()),
    "bias": lambda case: case.bias is not None,
    "dropout": lambda case: case.dropout > 0.0,
    "strides": lambda case: (case.layout, case.grad_layout) != ("contiguous", "contiguous"),
    "system": lambda case: not case.gradients,
}
"""The calls to begin with, family by family: only to be quick."""


def found_by(attend, case):
    """Everything that a caller can notice about one call, by name, and its output; an exception is a result too."""
    inputs = case.inputs()
    before = {name: leaf.detach().clone() for name, leaf in leaves_of(inputs).items()}
    torch.manual_seed(case.seed)
    try:
        answer = attend(inputs, None)
        found = {"output": answer.output, "weights": answer.weights, "lse": answer.lse}
        if case.gradients:
            found |= gradients_of(answer.output, inputs, case.grad_output())
    except Exception as reason:
        return {"raised": type(reason).__name__}, None
    found["inputs"] = torch.cat([(leaf != before[name]).flatten() for name, leaf in leaves_of(inputs).items()])
    found["alias"] = answer.output.untyped_storage().data_ptr() == inputs.value.untyped_storage().data_ptr()
    return found, answer.output


def same(left, right):
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return (
            left.dtype == right.dtype and left.shape == right.shape and torch.equal(left.nan_to_num(7.5), right.nan_to_num(7.5))
        )
    return type(left) is type(right) and left == right


@pytest.fixture(scope="module")
def right():
    return [found_by(Kernel(), case)[0] for case in CALLS]


def differs(mutant, right):
    """The first call, and what of it, by which a mutant differs from the kernel."""
    attend, kept, copied = mutant.attend, None, None
    tells = TELLING.get(mutant.family, lambda case: False)
    for case, wanted in sorted(zip(CALLS, right, strict=True), key=lambda pair: not tells(pair[0])):
        found, output = found_by(attend, case)
        for name in sorted(wanted.keys() | found.keys()):
            if not same(wanted.get(name), found.get(name)):
                return case, name
        if kept is not None and not torch.equal(kept, copied):
            return case, "an earlier output"
        kept, copied = output, output.detach().clone()
    return None


NEED_MORE = {"masked_row_gradient_times_zero", "undeclared_score_ignored"}
"""Shown below, by calls that no `Case` makes."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant", [mutant for mutant in ATTENTION_MUTANTS if mutant.name not in NEED_MORE], ids=lambda mutant: mutant.name
)
def test_a_mutant_differs_from_the_kernel_that_it_was_made_from(mutant, right):
    assert differs(mutant, right) is not None


def test_the_kernel_does_not_differ_from_itself(right):
    assert differs(replace(ATTENTION_MUTANTS[0], fresh=Kernel), right) is None
    assert not any("raised" in found for found in right)


def by_name(name):
    return next(mutant for mutant in ATTENTION_MUTANTS if mutant.name == name)


def test_an_infinite_gradient_of_a_fully_masked_row_shows_one_mutant():
    case = replace(CAUSAL, offset=-2)
    inputs, grad_output = case.inputs(), case.grad_output()
    grad_output[:, :, 0] = torch.inf
    for attend, finite in ((Kernel(), True), (by_name("masked_row_gradient_times_zero").attend, False)):
        gradients = gradients_of(attend(inputs, None).output, inputs, grad_output)
        assert bool(gradients["value"].isfinite().all()) == finite


def test_another_score_function_is_refused_and_one_mutant_answers_it():
    inputs = replace(PLAIN.inputs(), score=lambda query, key: query @ key.mT)
    with pytest.raises(BackendRefused):
        Kernel()(inputs)
    assert by_name("undeclared_score_ignored").attend(inputs, None).output.shape == (2, 4, 5, 6)


def test_mutants_have_distinct_names_and_summaries():
    assert len({mutant.name for mutant in ATTENTION_MUTANTS}) == len({mutant.summary for mutant in ATTENTION_MUTANTS})
    assert len({mutant.name for mutant in ATTENTION_MUTANTS}) == len(ATTENTION_MUTANTS)
    least = {
        "masks": 16,
        "fully masked rows": 4,
        "softmax": 8,
        "heads": 5,
        "backward": 12,
        "bias": 8,
        "dropout": 6,
        "strides": 3,
    }
    least["system"] = 8
    counts = Counter(mutant.family for mutant in ATTENTION_MUTANTS)
    assert counts.keys() == least.keys()
    assert all(counts[family] >= number for family, number in least.items())


def test_a_fresh_mutant_has_no_state():
    mutant = by_name("remembers_scale")
    first, second = PLAIN.inputs(), replace(PLAIN, scale=2.0).inputs()
    used = mutant.attend
    used(first, None)
    assert not torch.equal(used(second, None).output, Kernel()(second).output)
    assert torch.equal(mutant.attend(second, None).output, Kernel()(second).output)


def test_an_undeclared_feature_is_refused_by_the_declaration():
    for name, case in (
        ("undeclared_softcap_ignored", replace(PLAIN, softcap=1.0)),
        ("undeclared_dropout_ignored", replace(PLAIN, dropout=0.5)),
        ("undeclared_bias_ignored", replace(PLAIN, bias="dense")),
        ("undeclared_segments_ignored", replace(PLAIN, segments=2)),
        ("undeclared_groups_read_first_heads", GROUPED),
    ):
        assert check_request(by_name(name).entry, PLAIN.request(), None).accepted
        assert not check_request(by_name(name).entry, case.request(), None).accepted
