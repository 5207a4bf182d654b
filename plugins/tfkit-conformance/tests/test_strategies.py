"""What is drawn is what the declaration says, every cell of it, and the sizes at which kernels go wrong are among it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from small_backend import declaring, small
from tfkit.builtin.attention.entries import EAGER, FLEX, SDPA, SdpaOptions
from tfkit.plugin import Range
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.cells import cells, edge_of, plan_of, shape_of
from tfkit_conformance.attention.elements import GRAD_LAYOUTS, LAYOUTS, REGIMES
from tfkit_conformance.attention.strategies import BLOCKS, MOST_PAIRS, cases

BLOCKY = declaring(
    dtypes={"bfloat16"},
    head_dim=Range(minimum=16, maximum=128, multiple=16),
    query_length=Range(),
    key_length=Range(minimum=64, multiple=64),
)
ONE_BIAS = declaring(mask_terms={"key_lengths"}, bias_kinds={"linear"}, tensor_offset=True)
SUBJECTS = {
    "eager": backend_under_test(EAGER),
    "sdpa": backend_under_test(SDPA),
    "flex": backend_under_test(FLEX),
    "flash": backend_under_test(SDPA, SdpaOptions(kernel="flash")),
    "small": small(),
    "blocky": small(can=BLOCKY),
    "decoding": small(can=declaring(query_length=Range(maximum=1), key_length=Range())),
    "square": small(can=declaring(query_length=Range(minimum=128, multiple=128), key_length=Range(minimum=128, multiple=128))),
    "tiny": small(can=declaring(query_length=Range(maximum=2), key_length=Range(maximum=2))),
    "long": small(can=declaring(query_length=Range(maximum=3), key_length=Range(minimum=1024, multiple=512))),
    "one bias": small(can=ONE_BIAS),
    "no masks": small(can=declaring(mask_terms=frozenset(), value_dim_differs=True, grouped_queries=True)),
}
ALL_HELD = {"eager", "small", "blocky", "decoding", "square", "tiny", "long", "one bias", "no masks"}
"""Those whose declaration has no further word to say in `unsupported`."""


def drawn(strategy, count, start=0):
    """So many examples of a strategy."""
    found = []

    @seed(start)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(strategy)
    def keep(case):
        found.append(case)

    keep()
    return found


def dtype_of(subject):
    return sorted(subject.capabilities.dtypes)[0]


@pytest.fixture(scope="module")
def many():
    """Calls of eager, whose declaration is the widest, from many short searches, as a run makes them."""
    return [case for start in range(40) for case in drawn(cases(SUBJECTS["eager"], "float32"), 8, start)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_drawn_cases_are_declared(name):
    subject = SUBJECTS[name]
    can, made = subject.capabilities, drawn(cases(subject, dtype_of(subject)), 20)
    assert len(made) >= 15
    for case in made:
        if name in ALL_HELD:
            assert subject.evaluate(case.request()).refused == ()
        assert (case.D in can.head_dim, case.Q in can.query_length, case.K in can.key_length) == (True, True, True)
        assert case.terms() <= can.mask_terms
        assert case.offset is not None or not (case.causal or case.window or case.bias in ("linear", "distance"))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALL_HELD))
def test_cases_drawn_for_a_cell_are_in_it(name):
    subject = SUBJECTS[name]
    for cell in cells(subject.capabilities, True):
        for case in drawn(cases(subject, dtype_of(subject), cell, True), 3):
            assert cell.meets(plan_of(case)), (cell, case)
            assert subject.accepts(case.request()), (cell, case)


def test_the_cells_of_a_small_declaration():
    found = [f"{cell.group}: {cell.name}" for cell in cells(declaring(query_length=Range(maximum=1)), True)]
    assert found == [
        "mask: no mask",
        "mask: causal",
        "shape: Q = 1",
        "shape: K = 1",
        "shape: Q = 1, causal",
        *[f"numbers: {regime}" for regime in REGIMES],
        *[f"memory: {layout}" for layout in LAYOUTS],
        *[f"memory: {layout} output gradient" for layout in GRAD_LAYOUTS],
    ]


def test_the_cells_of_the_widest_declaration():
    found = Counter(cell.group for cell in cells(SUBJECTS["eager"].capabilities, True))
    assert found == {
        "mask": 8, "mask pair": 21, "bias": 6, "bias + mask": 21, "offset per row": 4, "shape": 10, "heads": 3, "feature": 6,
        "numbers": 13, "memory": 13,
    }  # fmt: skip
    without = {cell.name for cell in cells(SUBJECTS["eager"].capabilities, False)}
    assert {cell.name for cell in cells(SUBJECTS["eager"].capabilities, True)} - without == {
        *[f"gradient of a {kind} bias" for kind in ("dense", "linear", "distance")],
        *[f"{layout} output gradient" for layout in GRAD_LAYOUTS],
    }


@pytest.mark.parametrize(
    ("queries", "keys", "shapes"),
    [
        (Range(), Range(), ["Q = 1", "Q < K", "Q > K", "Q = K", "K = 1"]),
        (Range(maximum=1), Range(), ["Q = 1", "K = 1"]),
        (Range(), Range(maximum=1), ["K = 1"]),
        (Range(maximum=2), Range(maximum=2), ["Q = 1", "Q = K", "K = 1"]),
        (Range(minimum=2), Range(minimum=64, multiple=64), ["Q < K", "Q > K", "Q = K"]),
        (Range(minimum=2, maximum=8), Range(minimum=16), ["Q < K"]),
        (Range(minimum=16), Range(minimum=2, maximum=8), ["Q > K"]),
        (Range(minimum=5, maximum=5), Range(minimum=5, maximum=5), ["Q = K"]),
        (Range(minimum=3, maximum=8, multiple=3), Range(minimum=5, maximum=10, multiple=5), ["Q < K", "Q > K"]),
    ],
    ids=str,
)
def test_shapes_that_are_impossible_have_no_cell(queries, keys, shapes):
    can = declaring(mask_terms=frozenset(), query_length=queries, key_length=keys)
    told = [cell.name for cell in cells(can, False) if cell.group == "shape" and not cell.name.startswith("K = block")]
    assert told == shapes
    exist = {shape_of(Q, K) for Q in range(1, 200) if Q in queries for K in range(1, 200) if K in keys}
    assert set(shapes) == exist


@pytest.mark.parametrize(
    ("K", "edge"),
    [(14, "between"), (15, "block - 1"), (16, "block"), (17, "block + 1"), (24, "between"), (63, "block - 1"),
     (255, "block - 1"), (256, "block"), (257, "block + 1"), (272, "between"), (1, "between")],
)  # fmt: skip
def test_the_class_of_a_length_relative_to_block_sizes(K, edge):
    assert edge_of(K) == edge


@pytest.mark.slow
def test_lengths_stand_on_both_sides_of_the_blocks_of_kernels(many):
    lengths = {length for case in many for length in (case.Q, case.K)}
    for side in (-1, 0, 1):
        met = [block for block in BLOCKS if block + side in lengths]
        assert len(met) >= 9, (side, met)
        assert met[0] == 16
    short = sum(case.K <= 13 for case in many) / len(many)
    assert 0.4 < short < 0.9


def test_a_third_of_the_cases_is_square(many):
    square = [case for case in many if case.Q == case.K > 1]
    assert 0.2 < len(square) / len(many) < 0.5
    assert 0.1 < sum("causal" in case.terms() for case in square) / len(square) < 0.7


@pytest.mark.slow
def test_sizes_differ_mostly_so_that_a_swapped_axis_shows(many):
    oblong = [case for case in many if case.Q != case.K and min(case.Q, case.K) > 1]
    distinct = [case for case in oblong if not {case.Q, case.K} & {case.B, case.G, case.H, case.D, case.V}]
    assert len(distinct) / len(oblong) > 0.8
    several = [case for case in many if case.B > 1]
    assert len(several) / len(many) > 0.3
    assert sum(case.B in (case.G, case.H) for case in several) / len(several) < 0.3


def test_every_feature_is_drawn(many):
    seen = Counter()
    for case in many:
        seen.update(f"{key} {value}" for key, value in plan_of(case).items() if key != "terms")
        seen.update(case.terms())
        seen[f"{len(case.terms())} terms"] += 1
        seen["no bias gradient"] += case.bias is not None and not case.bias_gradient
        seen["blind by length"] += case.key_lengths is not None and min(case.key_lengths) <= 0
        seen["negative offset"] += isinstance(case.offset, int) and case.offset < 0
        seen["half open"] += case.window is not None and None in case.window
    for name in (
        "0 terms", "1 terms", "2 terms", "3 terms", "causal", "window", "key_lengths", "query_lengths", "key_visible",
        "segments", "visible", "bias dense", "bias linear", "bias distance", "bias None",
        "bias_gradient True", "no bias gradient",
        "tensor_offset True", "heads own", "heads shared", "heads one", "value_dim True", "softcap True", "lse True",
        "weights True", "blind by length", "negative offset", "half open",
        *(f"regime {regime}" for regime in REGIMES), *(f"layout {layout}" for layout in LAYOUTS),
        *(f"grad_layout {layout}" for layout in GRAD_LAYOUTS),
    ):  # fmt: skip
        assert seen[name], name


@pytest.mark.slow
def test_equal_lengths_come_as_one_tensor_too():
    subject = SUBJECTS["eager"]
    pair = next(cell for cell in cells(subject.capabilities, False) if cell.name == "key_lengths + query_lengths")
    made = [case for start in range(12) for case in drawn(cases(subject, "float32", pair), 8, start)]
    shared = [case for case in made if case.shared_lengths]
    assert 0 < len(shared) < len(made) / 2
    assert all(case.Q == case.K and case.key_lengths == case.query_lengths for case in shared)


def test_drawn_calls_are_small(many):
    assert max(case.B * case.Q * case.K for case in many) <= 1.2 * MOST_PAIRS


def test_gradients_are_requested_if_declared(many):
    assert all(case.gradients for case in many)
    assert not any(case.gradients for case in drawn(cases(SUBJECTS["eager"], "float32", None, False), 20))
    without = small(can=declaring(backward=False))
    assert not any(case.gradients for case in drawn(cases(without, "float32"), 20))
