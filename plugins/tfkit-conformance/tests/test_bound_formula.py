"""The bound is the formula of its docstring, number by number: a coefficient that changes, shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attention_calls import BY_NAME, typed
from bound_by_loops import by_loops
from tfkit.plugin import Numerics
from tfkit_conformance.attention.bound import bounds
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.reference import reference

STORED = Numerics(scores="storage", probabilities="storage", gradients="storage", query_prescaled=True)
KEPT = Numerics(scores="accumulation", probabilities="accumulation", gradients="accumulation", tf32=True)
SMALL = {"B": 2, "H": 4, "G": 2, "Q": 3, "K": 5, "D": 3, "V": 2, "gradients": True, "bias_gradient": True}
CASES = [
    Case(**SMALL, causal=True, offset=1),
    Case(**SMALL, causal=True, offset=-1, softcap=0.7),
    Case(**SMALL, softcap=-1.5, scale=-0.6, bias="dense", bias_axes="HK", bias_dtype="query"),
    Case(**SMALL, bias="linear", offset=(2, -1), key_lengths=(3, 0)),
    Case(**SMALL, bias="distance", bias_values=4, offset=1, bias_dtype="query", regime="offset_values"),
    Case(**{**SMALL, "G": 4}, bias="distance", bias_values=4, offset=(0, 3), causal=True, softcap=3.0, regime="large"),
    Case(**{**SMALL, "B": 1, "H": 2, "Q": 33, "K": 3}),
    replace(BY_NAME["many_keys"], D=2, V=2, K=33, Q=2),
]
CLASSES = {
    "fused": Numerics(),
    "kept": KEPT,
    "stored": STORED,
    "scores": Numerics(scores="storage", probabilities="accumulation"),
    "gradients": Numerics(gradients="storage", tf32=True),
    "prescaled": Numerics(query_prescaled=True),
}


def same(case, numerics, tf32=False, factor=1.0, towards=1.0, drawn=None):
    inputs = case.inputs()
    inputs = replace(inputs, scale=inputs.scale * factor)
    found = reference(inputs, case.grad_output().double() * towards, drawn)
    made = bounds(found, numerics, tf32)
    output, weights, lse, evaluated, gradients = by_loops(found, numerics, tf32)
    for got, want in ((made.output, output), (made.weights, weights), (made.lse, lse)):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=0)
    assert torch.equal(made.evaluated, evaluated)
    assert made.gradients.keys() == gradients.keys()
    for leaf, bound in gradients.items():
        torch.testing.assert_close(
            made.gradients[leaf], bound, rtol=1e-9, atol=0, msg=lambda text, leaf=leaf: f"{leaf}: {text}"
        )
    return evaluated


HALVES = [(dtype, kind) for dtype in (torch.bfloat16, torch.float16) for kind in CLASSES]
WIDE = [(torch.float64, "stored"), (torch.float32, "fused"), (torch.float32, "kept")]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "kind"), HALVES + WIDE)
def test_every_bound_is_its_formula(dtype, kind):
    for seed, case in enumerate(CASES):
        same(typed(case, dtype, seed), CLASSES[kind], tf32=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_that_are_not_evaluated_are_those_of_the_formula(dtype):
    """Scores whose error is as large as they are; in float16 also numbers beyond its range, whichever the class keeps."""
    met = set()
    for case in (CASES[0], CASES[1], CASES[3]):
        for kind, factor in (("stored", 40.0), ("scores", 3e4), ("fused", 1e4), ("stored", 1.0)):
            met |= set(same(typed(case, dtype), CLASSES[kind], factor=factor).flatten().tolist())
    assert met == ({True} if dtype == torch.float32 else {True, False})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stored", "scores", "fused", "kept"])
def test_gradients_beyond_the_range_of_the_dtype_are_not_evaluated(kind):
    """The gradient of the output doubles until each of dP, dS and dR has left the range of float16 before the others."""
    met = set()
    for number, case in enumerate((CASES[0], CASES[2], replace(CASES[5], softcap=50.0))):
        for power in range(20 + number % 2, 44, 2):
            evaluated = same(typed(case, torch.float16), CLASSES[kind], towards=2.0 ** (power / 2))
            met |= set(evaluated.flatten().tolist())
    assert met == ({True} if kind == "kept" else {True, False})


def test_a_dropout_draw_enters_the_formula():
    case = typed(CASES[1], torch.bfloat16)
    drawn = torch.bernoulli(torch.full((2, 4, 3, 5), 0.6), generator=torch.Generator().manual_seed(0)) / 0.6
    same(case, Numerics(), drawn=drawn)
    same(typed(CASES[0], torch.float32), Numerics(), drawn=drawn)


def test_tf32_counts_only_if_declared():
    case = typed(CASES[0], torch.float32)
    found = reference(case.inputs(), case.grad_output())
    assert torch.equal(bounds(found, KEPT).output, bounds(found, KEPT, tf32=False).output)
    assert (bounds(found, KEPT, tf32=True).output > bounds(found, KEPT).output).any()
