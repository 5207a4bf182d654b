"""Which tiles are chosen, with a simulated clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import tfkit_fused
import torch
from where import DEVICE, runs

from tfkit.inspection import check_request
from tfkit.plugin import AttentionRequest
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.compare import error_ratios
from tiers import EVERY_CASE

pytest.importorskip("triton", reason="not run: Triton, of which kernels are made, is not installed")

from test_saved import HERE
from tfkit_fused import launch, tiles as tiles_module
from tfkit_fused.operator_call import class_of
from tfkit_fused.saved import Saved, read
from tfkit_fused.tiles import INSTEAD, RAGGED, ROWS, SHORT, Tiles, of_row, row_for
from tfkit_fused.tuner import Tuner

SLOW, FAST, WRONG = Tiles(16, 16, 4, 1), Tiles(32, 32, 4, 2), Tiles(64, 64, 8, 3)
TILES = (SLOW, FAST, WRONG)


class Clock:
    """Runs the timed function and returns the given time of its tiles; None is a launch that fails."""

    def __init__(self, path: Path, times: dict[Tiles, float | None], capturing: bool = False) -> None:
        self.times, self.heard = times, []
        self.tuner = Tuner(Saved(path, HERE), self.time, lambda: capturing)

    def time(self, run) -> float:
        run()
        return self.times[self.heard[-1]]

    def launch(self, tiles: Tiles) -> None:
        self.heard.append(tiles)
        if self.times[tiles] is None:
            raise RuntimeError("out of resource: shared memory")

    def chosen(self, name: str = "forward", measure: bool = True) -> Tiles:
        return self.tuner.chosen(name, TILES, measure, self.launch)


TIMES = {SLOW: 2.0, FAST: 1.0, WRONG: None}


def test_the_fastest_that_runs_is_chosen_saved_and_measured_once(tmp_path):
    clock = Clock(tmp_path / "fused.json", TIMES)
    assert [clock.chosen(), clock.chosen()] == [FAST, FAST]
    assert clock.heard == [*TILES]
    choice = read(tmp_path / "fused.json")[0][HERE]["forward"]
    assert choice.tiles == FAST.shape
    assert choice.milliseconds == {str(SLOW): 2.0, str(FAST): 1.0, str(WRONG): None}
    again = Clock(tmp_path / "fused.json", {SLOW: 1.0, FAST: 2.0, WRONG: None})
    assert [again.chosen(), again.chosen(measure=False)] == [FAST, FAST]
    assert again.heard == []


@pytest.mark.parametrize(
    ("change", "used"),
    [(lambda x: x, True), (lambda x: x + 1e-3 * x.nan_to_num(0.0, 0.0, 0.0).max(), True), (lambda x: -x, False),
     (lambda x: None, False), (lambda x: x.where(x != 3.0, torch.nan), False),
     (lambda x: x.nan_to_num(), False), (lambda x: x * torch.inf, False)],
)  # fmt: skip
def test_tiles_with_other_results_are_told_and_not_used(change, used, tmp_path, recwarn):
    """The first count as right. Another order of a sum changes the last bits; NaN and infinities stay where they are. Nothing
    that is left unwritten counts as right."""
    right = torch.tensor([[3.0, -2.0, -torch.inf, torch.nan]], dtype=torch.float16)
    clock = Clock(tmp_path / "fused.json", TIMES)
    result = torch.empty_like(right)

    def launch(tiles: Tiles) -> None:
        clock.launch(tiles)
        written = right if tiles == SLOW else change(right)
        if written is not None:
            result.copy_(written)

    assert clock.tuner.chosen("forward", TILES, True, launch, (result,)) == (FAST if used else SLOW)
    choice = read(tmp_path / "fused.json")[0][HERE]["forward"]
    assert choice.milliseconds[str(FAST)] == (TIMES[FAST] if used else None)
    told = [str(each.message) for each in recwarn]
    assert [f"has other results with tiles {FAST} than with {SLOW}: not used" in each for each in told] == [True] * (not used)


def test_nothing_is_measured_unless_asked_and_the_first_answer_holds(tmp_path):
    clock = Clock(tmp_path / "fused.json", TIMES)
    assert [clock.chosen(measure=False), clock.chosen(measure=True)] == [SLOW, SLOW]
    assert (clock.heard, list(tmp_path.iterdir())) == ([], [])
    assert clock.chosen("keys") == FAST


def test_nothing_is_measured_while_a_graph_is_captured(tmp_path):
    clock = Clock(tmp_path / "fused.json", TIMES, capturing=True)
    with pytest.warns(UserWarning, match="`forward` was not measured: a CUDA graph is being captured"):
        assert clock.chosen() == SLOW
    assert clock.heard == []


def test_where_nothing_runs_the_launch_itself_tells(tmp_path):
    clock = Clock(tmp_path / "fused.json", dict.fromkeys(TILES))
    assert clock.chosen() == SLOW
    assert list(tmp_path.iterdir()) == []


def test_tiles_that_are_none_of_the_kernels_are_told_and_not_used(tmp_path):
    clock = Clock(tmp_path / "fused.json", TIMES)
    clock.chosen()
    text = (tmp_path / "fused.json").read_text().replace(" 32,", " 1024,")
    (tmp_path / "fused.json").write_text(text)
    assert read(tmp_path / "fused.json")[0][HERE]["forward"].tiles[0] == 1024
    with pytest.warns(UserWarning, match="chooses tiles that are none for `forward`"):
        assert Clock(tmp_path / "fused.json", TIMES).chosen() == SLOW


def test_without_a_writable_file_a_choice_counts_for_the_process(tmp_path):
    (tmp_path / "file").write_text("")
    clock = Clock(tmp_path / "file" / "fused.json", TIMES)
    with pytest.warns(UserWarning, match="could not be"):
        assert [clock.chosen(), clock.chosen()] == [FAST, FAST]
    assert clock.heard == [*TILES]


CASE = Case(
    B=2, H=2, G=1, Q=37, K=53, D=24, V=40, gradients=True, offset=(3, -5), causal=True, key_lengths=(50, 20)
)  # fmt: skip


def given(case: Case = CASE, **changes):
    from tfkit_fused import attend as module

    heard = []
    operator = module.operator
    try:
        module.operator = lambda *arguments: heard.append(launch.Call(*arguments)) or (arguments[0], arguments[0])
        module.attend(case.inputs(), tfkit_fused.FusedOptions())
    finally:
        module.operator = operator
    return replace(heard[0], **changes)


def test_calls_share_a_class_by_what_kernels_are_compiled_for_and_lengths_to_a_power_of_two():
    plain = class_of("forward", given())
    assert plain == "forward float32 d32 v64 group2 q64 k64 right key_lengths"
    same = (replace(CASE, Q=40, K=64), replace(CASE, B=5, offset=3, key_lengths=(1, 2, 3, 4, 5)), replace(CASE, H=8, G=4, D=32))
    assert {class_of("forward", given(each)) for each in same} == {plain}
    other = [
        replace(CASE, Q=65), replace(CASE, K=65), replace(CASE, dtype="float16"), replace(CASE, D=33), replace(CASE, V=65),
        replace(CASE, causal=False), replace(CASE, window=(3, 0)), replace(CASE, key_lengths=None), replace(CASE, G=2),
        replace(CASE, query_lengths=(9, 9)), replace(CASE, key_visible="coins"), replace(CASE, segments=2),
        replace(CASE, visible="QK"), replace(CASE, softcap=1.0), replace(CASE, dropout=0.1),
        *(replace(CASE, bias=bias) for bias in ("dense", "linear", "distance")),
    ]  # fmt: skip
    names = {class_of("forward", given(each)) for each in other} | {class_of("keys", given())}
    assert len(names - {plain}) == len(other) + 1, names


SMALL = replace(CASE, Q=18, K=20, key_lengths=(20, 9))


@runs
@pytest.mark.parametrize(("bias", "last"), [("linear", None), ("distance", "diagonals"), ("dense", "bias")])
def test_a_call_is_measured_kernel_by_kernel_and_stays_right(bias, last, tmp_path, launching):
    from tfkit_fused.attend import attend

    tuner = Tuner(
        Saved(tmp_path / "fused.json", HERE), lambda run: (run(), 1.0 if run.args[0] == FAST else 2.0)[1], lambda: False
    )
    launching(tuner_of=lambda device: tuner, tiles_for=lambda *arguments: (SLOW, FAST))
    inputs = replace(SMALL, bias=bias, bias_gradient=True).inputs(DEVICE)
    options = tfkit_fused.FusedOptions(tuned="measure")
    found = error_ratios(attend, options, tfkit_fused.FUSED.capabilities.numerics, inputs, SMALL.grad_output(DEVICE))
    assert max(found.values()) <= 1.0, found
    terms = f"float32 d32 v64 group2 q32 k32 right key_lengths {bias}"
    copied = " tma" * tfkit_fused.INTERPRETED  # on a device, only numbers of 16 bits are
    kernels = {"forward": copied, "queries": copied, "keys": copied * (bias != "dense"), **({last: ""} if last else {})}
    assert tuner.answers == {f"{kernel} {terms}{how}": FAST for kernel, how in kernels.items()}


@runs
def test_an_atomic_backward_is_measured_without_adding_twice(tmp_path, launching):
    from tfkit_fused.attend import attend_atomic

    tuner = Tuner(Saved(tmp_path / "fused.json", HERE), lambda run: (run(), 1.0)[1], lambda: False)
    launching(tuner_of=lambda device: tuner, tiles_for=lambda *arguments: (SLOW, FAST))
    options = tfkit_fused.FusedOptions(tuned="measure")
    numerics = tfkit_fused.ATOMIC.capabilities.numerics
    found = error_ratios(attend_atomic, options, numerics, SMALL.inputs(DEVICE), SMALL.grad_output(DEVICE))
    assert max(found.values()) <= 1.0, found
    assert [name.split()[0] for name in tuner.answers] == ["forward", "together"]


@runs
@pytest.mark.parametrize("why", ["off", "written", "deterministic"])
def test_where_tuning_has_no_say_nothing_is_looked_up(why, launching):
    from tfkit_fused.attend import attend

    def never(device):
        raise AssertionError("looked up")

    launching(tuner_of=never)
    options = tfkit_fused.FusedOptions(tuned="off" if why == "off" else "saved", tile_keys=16 if why == "written" else None)
    if why != "written":
        launching(tiles_for=lambda *arguments: (SLOW, FAST))
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(why == "deterministic")
    try:
        attend(SMALL.inputs(DEVICE), options)
    finally:
        torch.use_deterministic_algorithms(before)


DTYPES = {2: "float16", 4: "float32"}
ALL = {(row.kernel, row.bytes, each) for row in ROWS for sm in (8, 9, 10) for each in of_row(row, sm, sm > 8)}
SIZES = sorted({(bytes, each.queries, each.keys) for kernel, bytes, each in ALL if kernel != "decode"})
FEW = sorted({(bytes, each.keys) for kernel, bytes, each in ALL if kernel == "decode"})


BIASES = (None, "distance", "dense")
CHOSEN = [
    pytest.param(sizes, bias, bool(atomic), id="{}-{}x{}-{}-{}".format(*sizes, bias, ("fused", "atomic")[atomic]))
    for (number, sizes), (place, bias), atomic in product(enumerate(SIZES), enumerate(BIASES), (0, 1))
    if EVERY_CASE or DEVICE == "cuda" or atomic == (number + place) % 2
]
"""Tiles, bias, and which backward. In the interpreter every two values of two of the three meet."""


@pytest.mark.parametrize("names", [(0, 1), (0, 2), (1, 2)])
def test_every_two_of_tiles_bias_and_backward_meet(names):
    wanted = SIZES, BIASES, (False, True)
    found = {tuple(each.values[name] for name in names) for each in CHOSEN}
    assert found == {*product(*(wanted[name] for name in names))}


@runs
@pytest.mark.parametrize(("sizes", "bias", "atomic"), CHOSEN)
def test_whatever_may_be_chosen_is_right(sizes, bias, atomic):
    from tfkit_fused import attend

    bytes, queries, keys = sizes
    options = tfkit_fused.FusedOptions(tile_queries=queries, tile_keys=keys)
    case = Case(
        B=1, H=2, G=1, Q=queries + 7, K=keys + 12, D=24, V=16, dtype=DTYPES[bytes], gradients=True, offset=5, causal=True,
        key_lengths=(keys + 5,), bias=bias, bias_gradient=bias is not None,
    )  # fmt: skip
    function = attend.attend_atomic if atomic else attend.attend
    numerics = tfkit_fused.FUSED.capabilities.numerics
    found = error_ratios(function, options, numerics, case.inputs(DEVICE), case.grad_output(DEVICE))
    assert max(found.values()) <= 1.0, found


@runs
@pytest.mark.parametrize(("bytes", "keys"), FEW)
def test_whatever_may_be_chosen_for_few_queries_is_right(bytes, keys):
    from tfkit_fused.attend import attend

    case = Case(B=1, H=2, G=1, Q=1, K=1100, D=16, V=16, dtype=DTYPES[bytes], offset=1050, causal=True)
    options = tfkit_fused.FusedOptions(tile_keys=keys)
    found = error_ratios(
        attend, options, tfkit_fused.FUSED.capabilities.numerics, case.inputs(DEVICE), case.grad_output(DEVICE)
    )
    assert max(found.values()) <= 1.0, found


def test_batches_with_lengths_take_the_tiles_of_short_calls_up_to_a_longer_length():
    def is_short(length: int, ragged: bool) -> set[bool]:
        tensor = torch.zeros(1, 1, length, 64, dtype=torch.float16)
        rows = [row_for(kernel, tensor, tensor, tensor, "plain", ragged) for kernel in ("forward", "queries", "keys")]
        return {row.short for row in rows}

    assert [is_short(SHORT, False), is_short(SHORT + 1, False)] == [{True}, {False}]
    assert [is_short(SHORT + 1, True), is_short(RAGGED, True), is_short(RAGGED + 1, True)] == [{True}, {True}, {False}]
    few, many = (torch.zeros(1, 1, length, 64, dtype=torch.float16) for length in (RAGGED, RAGGED + 1))
    assert not row_for("forward", few, many, many, "plain", True).short


@pytest.mark.parametrize("version", [*INSTEAD, "another"])
def test_the_table_offers_a_choice_everywhere_no_tiles_twice_and_none_of_another_kind(version, monkeypatch):
    monkeypatch.setattr(tiles_module, "triton_version", lambda: version)
    for row in ROWS:
        for generation in (8, 9, 10):
            tiles = of_row.__wrapped__(row, generation)
            assert len(tiles) in ((2, 3, 4) if (row.large if generation > 8 else row.small) else (0,)), row
            assert len(set(tiles)) == len(tiles), row
            assert row.kernel != "diagonals" or {each.queries == each.keys for each in tiles} == {True}


@pytest.mark.parametrize(
    ("requested", "options", "reason"),
    [
        ({}, {"tuned": "measure", "tile_keys": 32}, "leave `tuned: measure` nothing to measure"),
        ({"device": "cpu", "cuda_capability": None}, {"tuned": "measure"}, "needs CUDA"),
    ],
)
def test_measuring_is_refused_where_it_makes_no_sense(requested, options, reason):
    asked = AttentionRequest(device="cuda", cuda_capability=(9, 0), dtype="float16", head_dim=64, value_dim=64)
    refused = check_request(tfkit_fused.FUSED, replace(asked, **requested), tfkit_fused.FusedOptions(**options)).refused
    assert any(reason in each for each in refused), refused
    assert check_request(tfkit_fused.FUSED, asked, tfkit_fused.FusedOptions(tuned="measure")).refused == ()
