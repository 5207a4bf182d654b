"""The table that `auto` uses: as a file, as package data, and given to a catalogue."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import tfkit
from tfkit import InputError, PluginError
from tfkit.attention.auto_table import AutoRow
from tfkit.attention.selection import auto_row, faster_elsewhere, ranked
from tfkit.builtin.attention.auto_cuda import RATES, SHORT, SINGLE, TIE, eager_time, sdpa_time
from tfkit.builtin.attention.published_cuda import PAPER, PULL, ROWS, SOURCES, STABLE, both
from tfkit.inspection import parse_table
from tfkit.plugin import AttentionRequest, AutoTable

ROOT = Path(__file__).parents[1]
TABLE = {
    "tfkit_auto": 1, "device": "cpu", "device_name": "A machine", "capability": None, "threads": 2,
    "versions": {"torch": "2.13.0"}, "command": "tfkit bench auto",
    "rows": {"flex": [{"dtypes": ["float32"], "lengths": [1, 64], "decoding": True, "relative_time": 0.5},
                      {"dtypes": ["float32"], "lengths": [65, None], "relative_time": 2.0}]},
}  # fmt: skip
ASKED = AttentionRequest(device="cpu", dtype="float32", queries=3, keys=9, gradients=False)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "auto.json"
    path.write_text(json.dumps(TABLE))
    return path


def test_a_table_is_read_as_rows_with_their_hardware():
    rows = parse_table(json.dumps(TABLE), "x")["flex"]
    assert [(row.lengths, row.decoding, row.relative_time) for row in rows] == [((1, 64), True, 0.5), ((65, None), None, 2.0)]
    assert {(row.device, row.measured) for row in rows} == {("cpu", "A machine, 2 threads, torch 2.13.0")}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("{", "no JSON"),
        ("[]", "no table"),
        ("[" * 100000, "no JSON"),
        ({"rows": 3}, "rows: Input should be a valid dictionary"),
        ({"rows": None}, "rows: "),
        ({"device_name": 3}, "device_name: "),
        ({"versions": {"torch": []}}, "versions.torch: "),
        ({"threads": "2"}, "threads: "),
        ({"capability": {}}, "capability: "),
        ({"tfkit_auto": 2}, "its form is 2, this tfkit reads 1"),
        ({"device": None}, "device: Input should be a valid string"),
        ({"rows": {"flex": {}}}, "rows.flex: Input should be a valid list"),
        ({"rows": {"flex": [3]}}, "rows.flex.0: "),
        ({"rows": {"flex": [{"dtypes": 3, "relative_time": 1.0}]}}, "dtypes: "),
        ({"rows": {"flex": [{"dtypes": [[]], "relative_time": 1.0}]}}, "dtypes: "),
        ({"rows": {"flex": [{"dtypes": ["float32"]}]}}, "relative_time"),
        ({"rows": {"flex": [{"dtypes": ["float32"], "relative_time": 1.0, "maskd": True}]}}, "maskd"),
        ({"rows": {"flex": [{"dtypes": ["float32"], "relative_time": float("nan")}]}}, "NaN is not a number"),
        *(({"rows": {"flex": [{"dtypes": ["float32"], "relative_time": time}]}}, "greater than 0") for time in (0, -1, 1e-400)),
        *(
            (
                {"rows": {"flex": [{"dtypes": ["float32"], "relative_time": 1.0, name: limits}]}},
                f"{name}: a smallest and a largest",
            )
            for name in ("lengths", "head_dims", "scores")
            for limits in ([45, 1], [0, 0], [-5, 5], [0, 5], [1, 0], [1, 10**300], [2**70, None])
        ),
        ({"rows": {"flex": [{"dtypes": ["float99"], "relative_time": 1.0}]}}, "dtypes: some of float64"),
        ({"rows": {"flex": [{"dtypes": [], "relative_time": 1.0}]}}, "dtypes: some of float64"),
        ({"rows": {"flex": [{"dtypes": ["float32"], "relative_time": 1.0}] * 2_001}}, "it has 2,001 rows, and at most 2,000"),
        ({"tfkit_auto": True}, "its form is True"),
        ({"device_name": "x" * 201}, "device_name: "),
    ],
)
def test_an_invalid_table_is_reported(change, expected, tmp_path, catalogue):
    path = tmp_path / "auto.json"
    path.write_text(change if isinstance(change, str) else json.dumps({**TABLE, **change}))
    with pytest.raises(InputError) as error:
        catalogue.with_auto_table(path)
    [diagnostic] = error.value.diagnostics
    assert diagnostic.code == "TFK062"
    assert str(path) in diagnostic.message
    assert expected in diagnostic.message


@pytest.mark.parametrize("kind", ["named pipe", "directory", "device", "large"])
def test_special_and_large_files_are_refused_without_blocking(kind, tmp_path, catalogue):
    path = tmp_path / "auto.json"
    if kind == "named pipe":
        os.mkfifo(path)
    elif kind == "large":
        path.touch()
        os.truncate(path, 8 << 40)
    with pytest.raises(InputError, match=rf"TFK062.*cannot be read: .*({kind}|more than 16,777,216 bytes)"):
        catalogue.with_auto_table({"directory": tmp_path, "device": "/dev/zero"}.get(kind, path))


def test_a_users_table_precedes_those_of_plugins(file, catalogue):
    own = catalogue.with_auto_table(file)
    assert [row.relative_time for row in own.find("backend", "flex").auto] == [0.5, 2.0]
    assert catalogue.find("backend", "flex").auto == ()
    assert own.find("backend", "eager") is catalogue.find("backend", "eager")
    assert own.names("norm") == catalogue.names("norm")
    again = own.with_auto_table(file)
    assert len(again.find("backend", "flex").auto) == 4


def test_a_table_of_a_backend_that_is_not_there_and_a_file_that_is_not_there(tmp_path, catalogue):
    with pytest.raises(InputError, match=r"TFK062.*cannot be read"):
        catalogue.with_auto_table(tmp_path / "none.json")
    path = tmp_path / "auto.json"
    path.write_text(json.dumps({**TABLE, "rows": {"acme.flash": TABLE["rows"]["flex"]}}))
    with pytest.raises(InputError, match=r"TFK062.*measures `acme.flash`, which is not installed"):
        catalogue.with_auto_table(path)


def test_package_data_is_read_when_a_row_is_asked_for_and_not_before(file, monkeypatch):
    monkeypatch.syspath_prepend(file.parent.parent)
    package = file.parent.name.replace("-", "_")
    (file.parent / "__init__.py").touch()
    if package != file.parent.name:
        file.parent.rename(file.parent.parent / package)
    more = AutoRow(device="cuda", dtypes={"float16"}, relative_time=0.1)
    table = AutoTable(package, ("auto.json",), "flex", more=(more,))
    assert "rows" not in vars(table)
    assert [row.relative_time for row in table] == [0.5, 2.0, 0.1]
    assert "rows" in vars(table)
    assert list(AutoTable(package, ("auto.json",), "other")) == []
    with pytest.raises(PluginError, match="TFK062"):
        len(AutoTable(package, ("gone.json",), "flex"))
    with pytest.raises(PluginError, match="TFK062"):
        len(AutoTable("no_such_package", ("auto.json",), "flex"))


def test_the_shipped_table_is_read_without_torch():
    code = (
        "import sys; from tfkit.catalogue import load_catalogue; "
        "table = load_catalogue().find('backend', 'sdpa').auto; assert 'rows' not in vars(table); "
        "print(len(table) > 5, all(row.measured or row.published or row.estimated for row in table), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False"]


@pytest.mark.parametrize(
    ("condition", "within", "without"),
    [
        ({"masked": True}, {"mask_terms": frozenset({"key_lengths"})}, {"mask_terms": frozenset({"causal"})}),
        ({"masked": False}, {"mask_terms": frozenset({"causal"})}, {"mask_terms": frozenset({"causal", "window"})}),
        ({"causal": True}, {"mask_terms": frozenset({"causal"})}, {}),
        ({"windowed": False}, {"mask_terms": frozenset({"causal"})}, {"mask_terms": frozenset({"causal", "window"})}),
        ({"biased": True}, {"bias": "linear"}, {}),
        ({"biases": {"linear"}}, {"bias": "linear"}, {"bias": "distance"}),
        ({"decoding": True}, {"queries": 1}, {"queries": None}),
        ({"decoding": False}, {"queries": 2}, {"queries": 1}),
        ({"head_dims": (65, 128)}, {"head_dim": 128}, {"head_dim": 64}),
        ({"head_dims": (65, None)}, {"head_dim": None}, {"head_dim": 64}),
        ({"scores": (1, 4096)}, {"scores": 4096}, {"scores": 4097}),
        ({"scores": (4097, None)}, {"scores": None}, {"scores": 4096}),
        ({"capability": (9, 0)}, {"cuda_capability": (9, 0)}, {"cuda_capability": (8, 0)}),
        ({"capability": (9, 0)}, {"cuda_capability": None}, {"cuda_capability": (10, 0)}),
    ],
)
def test_conditions(condition, within, without):
    row = AutoRow(device="cpu", dtypes={"float32"}, relative_time=0.5, **condition)
    assert row.covers(replace(ASKED, **within))
    assert not row.covers(replace(ASKED, **without))


def test_the_first_row_that_covers_a_call_counts(file, catalogue):
    entry = catalogue.with_auto_table(file).find("backend", "flex")
    assert auto_row(entry, replace(ASKED, queries=1)).relative_time == 0.5
    assert auto_row(entry, ASKED) is None
    assert auto_row(entry, replace(ASKED, keys=65)).relative_time == 2.0


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (9, 0), (10, 0), None])
def test_auto_takes_eager_on_cuda_nowhere_that_sdpa_serves(capability):
    candidates = [both for both in tfkit.load_catalogue().ready("backend") if both[0].auto and both[0].name != "fused"]
    flags = [(False, True)] * 5
    for dtype, (gradients, dropout, masked, biased, decoding) in product(("float32", "bfloat16"), product(*flags)):
        request = AttentionRequest(
            device="cuda", cuda_capability=capability, dtype=dtype, head_dim=64, value_dim=64, gradients=gradients,
            dropout=dropout, queries=1 if decoding else 300, keys=300, mask_terms=frozenset({"key_lengths"} if masked else {}),
            bias="distance" if biased else None, bias_gradient=biased and gradients,
        )  # fmt: skip
        accepted = [candidates[index][0].name for index, verdict in ranked(candidates, request, True) if verdict.accepted]
        # On an H100 `eager` was measured, and is faster than `sdpa` with the bias of T5.
        measured = (
            capability in ((9, 0), None) and dtype == "bfloat16" and biased and not decoding and (gradients or not dropout)
        )
        assert accepted[0] == ("eager" if measured else "sdpa"), request


def test_no_estimate_is_carried_to_another_capability():
    rows = tfkit.load_catalogue().find("backend", "sdpa").auto
    asked = AttentionRequest(device="cuda", cuda_capability=(12, 0), dtype="bfloat16", queries=600, keys=600, gradients=True)
    found = next(row for row in rows if row.covers(asked))
    assert found.capability is None
    assert (found.relative_time, found.published) == (0.9, "")
    assert found.estimated == "no figure for such calls on this device, taken as a tie"


def test_the_published_rows_are_those_of_their_sources():
    """The slower kernel of a class of head dims and lengths, to two digits."""
    for row in ROWS:
        wanted = (row.published, row.capability, row.gradients, row.head_dims[1])
        (source,) = [each for each in SOURCES if (each.source, each.capability, each.gradients, each.head_dim) == wanted]
        times = [
            time for length, time in source.relative("flash").items() if row.lengths[0] <= length <= (row.lengths[1] or length)
        ]
        assert min(times) <= row.relative_time + 0.005
        assert statistics.geometric_mean(times) == pytest.approx(row.relative_time, rel=0.06)


@pytest.mark.parametrize(
    ("other", "head_dim", "gradients", "kernel", "apart"),
    [(PULL, 128, False, "cudnn", 2.0), (STABLE, 64, False, "flash", 1.6), (STABLE, 64, True, "flash", 1.5)],
)
def test_leaving_a_source_out_changes_no_choice(other, head_dim, gradients, kernel, apart):
    """Back-test: what one source says of an H100 is foretold from the other, as the faster of two backends. The times differ,
    since cards and versions do."""
    wanted = [(name, head_dim, gradients) for name in (PAPER, other)]
    one, two = (next(each for each in SOURCES if (each.source, each.head_dim, each.gradients) == name) for name in wanted)
    worst = max(max(a / b, b / a) for a, b in zip(one.relative(kernel).values(), two.relative(kernel).values(), strict=True))
    assert apart - 0.1 < worst < apart
    for known, left_out in ((one, two), (two, one)):
        foretold = statistics.geometric_mean(known.relative(kernel).values())
        for time in left_out.relative(kernel).values():
            assert (foretold < 1.0 - TIE) == (time < 1.0 - TIE)


def test_a_device_that_is_not_named_has_the_rates_of_the_one_that_it_counts_as():
    paper, like = (
        next(each for each in SOURCES if (each.source, each.head_dim, each.gradients) == (name, 64, False))
        for name in (PAPER, STABLE)
    )
    for published, found in zip(paper.kernels["flash"], like.kernels["flash"], strict=True):
        assert 0.89 < found / published < 1.11


def test_both_passes_together_have_the_rate_that_was_measured_for_them():
    """With the rates of STABLE for each pass."""
    found = both((252.53, 295.27, 310.09, 310.32, 306.62), (189.25, 239.06, 257.43, 279.80, 299.81))
    assert found == pytest.approx((203.84, 252.81, 270.56, 287.89, 301.72), rel=1e-3)


def test_the_estimates_are_near_what_is_published_for_an_h100():
    """Figure 5 of https://arxiv.org/abs/2407.08608, forward with head dim 64: flash attention exceeds the 52 to 73 TFLOP/s of
    plain torch 4.4 to 6.2 times. The estimate counts the memory that scores need, and is lower."""
    (rates,) = [each for each in RATES if each.capability == (9, 0)]
    ratio = sdpa_time(rates, SHORT, False, False, False) / eager_time(rates, False, False, False, False)
    assert 0.04 < ratio < 1 / 4.4
    assert ratio < sdpa_time(rates, SINGLE, False, False, False) / eager_time(rates, False, False, False, False) < 1.0


FIRST, *MEASURED = json.loads((ROOT / "bench/results/h100/attention.json").read_text())


def request_of(cell):
    """The class of calls of a measured cell."""
    name, _, which = cell["cell"].partition("/")
    kind, padded = name.split("-")[0], name.split("-")[-1] in ("encoder", "decoder", "cross")
    terms = {
        "causal": kind in ("causal", "window", "alibi") or name.endswith("decoder"),
        "window": kind == "window",
        "key_lengths": padded,
    }
    shape, gradients = cell["shape"], which == "training"
    return AttentionRequest(
        device="cuda", cuda_capability=(9, 0), dtype="bfloat16", queries=shape["queries"], keys=shape["keys"],
        head_dim=shape["head_dim"], value_dim=shape["head_dim"], mask_terms=frozenset(term for term in terms if terms[term]),
        bias={"t5": "distance", "alibi": "linear"}.get(kind), bias_gradient=kind == "t5" and gradients,
        gradients=gradients, dropout=kind == "dropout",
    )  # fmt: skip


@pytest.mark.parametrize("cell", MEASURED, ids=lambda cell: cell["cell"])
def test_the_choice_on_an_h100_is_the_fastest_that_was_measured_there(cell):
    """`fused` where it takes at most 0.9 of the time of `sdpa`, else `sdpa`."""
    catalogue = tfkit.load_catalogue()
    if "fused" not in {entry.name for entry, _ in catalogue.ready("backend")}:
        pytest.skip("not run: tfkit-fused is not installed")
    candidates = [(entry, None) for entry, _ in catalogue.ready("backend") if entry.auto]
    request = request_of(cell)
    rows = {entry.name: auto_row(entry, request) for entry, _ in candidates}
    chosen = min((row.relative_time, name) for name, row in rows.items() if row is not None)[1]
    assert "H100" in rows[chosen].measured
    own = {name: cell[name] for name in ("eager", "sdpa", "fused") if name in cell}
    best = min(own, key=own.get)
    worth = "sdpa" not in cell or cell["fused"] <= 0.9 * cell["sdpa"]
    assert chosen == ("fused" if worth else "sdpa")
    assert own[chosen] <= 1.02 * own[best] or (chosen, best) == ("sdpa", "fused")


def test_the_table_of_an_h100_is_that_of_its_times(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")
    import auto_h100

    auto_h100.main(tmp_path / "table.json")
    assert (tmp_path / "table.json").read_text() == auto_h100.TABLE.read_text()


def test_what_fused_would_gain_is_said_where_it_is_not_installed():
    """The factor is that of the measured cells: T5's biases of 2,048 tokens, training."""
    catalogue = tfkit.load_catalogue()
    without = [both for both in catalogue.ready("backend") if both[0].auto and both[0].name != "fused"]
    cell = next(each for each in MEASURED if each["cell"] == "t5-2048/training")
    request = request_of(cell)
    faster = faster_elsewhere(request, 1.0, without)
    assert faster == {"tfkit-fused": pytest.approx(cell["eager"] / cell["fused"], rel=0.01)}
    assert faster_elsewhere(request, 1.0, [*without, (replace(without[0][0], name="fused"), None)]) == {}
    assert faster_elsewhere(replace(request, score="additive"), 1.0, without) == {}
    assert faster_elsewhere(replace(request, dtype="float32"), 1.0, without) == {}
    assert faster_elsewhere(replace(request, cuda_capability=(8, 0)), 1.0, without) == {}
    assert faster_elsewhere(request, 1.05 * cell["fused"] / cell["eager"], without) == {}
