"""A whole run: who is timed, refused, wrong or failed, what is missing after an interruption, and the clocks."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tfkit.builtin.attention import eager
from tfkit.builtin.attention.entries import EAGER, FLEX, SDPA
from tfkit_conformance.bench.measure import Settings, machine_of, run_cells
from tfkit_conformance.bench.timer import CpuClock, CudaClock, bounded_memory

ENTRIES = [(entry, entry.options()) for entry in (EAGER, SDPA, FLEX)]


pytestmark = pytest.mark.usefixtures("no_ceilings")


@pytest.fixture
def measured(catalogue, scale, cell_of):
    def measure(*names, backends=ENTRIES, progress=lambda *_: None, **settings):
        cells = [cell_of(name) for name in names]
        return run_cells(cells, backends, catalogue, Settings("cpu", "float32", 3, scale, **settings), "tfkit bench", progress)

    return measure


def by_name(data, cell=0):
    return {row["name"]: row for row in data["cells"][cell]["backends"]}


@pytest.mark.slow
def test_every_backend_is_timed_or_says_why_not(measured, backend_of) -> None:
    def wrong(inputs, options):
        found = eager.attend(inputs, options)
        return replace(found, output=found.output + 0.01)

    def fails(inputs, options):
        raise ValueError("no such kernel")

    progress = []
    data = measured(
        "dense-d64-512/training", "decode-1024/forward",
        backends=[*ENTRIES, backend_of("wrong", wrong), backend_of("fails", fails)],
        progress=progress.append,
    )  # fmt: skip
    rows = by_name(data)
    assert {name: row["status"] for name, row in rows.items()} == {
        "eager": "timed", "sdpa": "timed", "flex": "refused", "wrong": "wrong", "fails": "failed",
    }  # fmt: skip
    assert all(len(rows[name]["seconds"]) == 3 for name in ("eager", "sdpa"))
    assert all(row["reason"] for row in rows.values() if row["status"] != "timed")
    assert rows["fails"]["reason"] == "ValueError: no such kernel"
    assert rows["wrong"]["seconds"] == rows["fails"]["seconds"] == []
    eager_time, sdpa_time = rows["eager"]["median"], rows["sdpa"]["median"]
    assert rows["eager"]["best_peer"] == pytest.approx(sdpa_time / eager_time)
    assert rows["eager"]["flops_per_second"] == pytest.approx(data["cells"][0]["flops"] / eager_time)
    assert rows["eager"]["share"] == pytest.approx(rows["eager"]["flops_per_second"] / 1e12)
    decode = by_name(data, 1)["sdpa"]
    assert decode["share"] == pytest.approx(data["cells"][1]["bytes"] / decode["median"] / 1e12)
    assert decode["prepare_seconds"] > 0
    assert (data["missing"], data["interrupted"]) == ([], False)
    assert progress == ["ceilings", "1 of 2, dense-d64-512/training", "2 of 2, decode-1024/forward", "ceilings again"]
    assert json.loads(json.dumps(data)) == data


def test_an_interruption_keeps_what_was_measured(measured, backend_of) -> None:
    calls = []

    def stopped(inputs, options):
        calls.append(1)
        if len(calls) == 15:
            raise KeyboardInterrupt
        return eager.attend(inputs, options)

    names = ("dense-d64-512/forward", "causal-d64-512/forward", "wmt-cross/forward")
    data = measured(*names, backends=[(EAGER, EAGER.options()), backend_of("stopped", stopped)])
    assert data["interrupted"]
    assert [cell["name"] for cell in data["cells"]] == list(names[:2])
    assert data["missing"] == [{"cell": names[2], "reason": "interrupted"}]
    assert {row["status"] for row in data["cells"][1]["backends"]} <= {"timed", "skipped"}


def test_cells_beyond_the_budget_are_missing(measured) -> None:
    data = measured("dense-d64-512/forward", "causal-d64-512/forward", budget=1e-9)
    assert data["cells"] == []
    assert [row["reason"] for row in data["missing"]] == ["the budget of 1e-09 s was spent"] * 2


@pytest.mark.slow
def test_a_call_longer_than_its_share_is_timed_once(measured, monkeypatch) -> None:
    monkeypatch.setattr(CpuClock, "time", lambda self, step: step() or 100.0)
    rows = by_name(measured("dense-d64-512/forward", budget=10.0))
    assert {row["status"] for row in rows.values()} == {"slow"}
    assert rows["eager"]["seconds"] == [100.0]


def test_the_memory_of_a_cpu_call_is_what_the_allocator_gave(monkeypatch) -> None:
    monkeypatch.undo()

    def step():
        first = torch.ones(1 << 18)
        second = first + 1
        del first
        return second * 2

    peak = CpuClock().peak(step)
    assert peak is not None
    assert 2 << 20 <= peak < 2.1 * (1 << 20)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a limit of address space is kept by Linux alone")
def test_running_out_of_memory_is_an_exception() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    with bounded_memory("cpu"), pytest.raises(RuntimeError, match="memory"):
        torch.empty(1 << 46, dtype=torch.int8)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_cuda_call_is_timed_between_events_after_a_flush_and_waited_for(monkeypatch) -> None:
    """The order of what happens, told by stand-ins: no device is needed."""
    happened = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            happened.append("event")

        def elapsed_time(self, end):
            return 2500.0

    class Flushed:
        def zero_(self):
            happened.append("flush")

    class Nothing:
        def __init__(self, device):
            pass

        __enter__ = __exit__ = lambda self, *_: None

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", Nothing)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: happened.append("wait"))
    clock = CudaClock.__new__(CudaClock)
    clock.device, clock.flushed = torch.device("cuda"), Flushed()
    assert clock.time(lambda: happened.append("call")) == 2.5
    assert happened == ["flush", "event", "call", "event", "wait"]


@pytest.mark.parametrize("more", [{"clock_rate": 1_980_000}, {}], ids=["clock", "no clock"])
def test_a_device_is_described_by_its_cuda_properties(more, catalogue, monkeypatch) -> None:
    context = {
        "name": "NVIDIA H100",
        "major": 9,
        "minor": 0,
        "multi_processor_count": 132,
        "total_memory": 80,
        "L2_cache_size": 50,
    }
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**context, **more))
    found = machine_of("cuda", catalogue)
    assert (found["device_name"], found["capability"], found["processors"]) == ("NVIDIA H100", [9, 0], 132)
    assert found.get("clock_hertz") == (1_980_000_000 if more else None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: there is no CUDA device here")
def test_a_run_on_the_device(catalogue, monkeypatch) -> None:
    monkeypatch.undo()
    from tfkit_conformance.bench.cells import SCALES, chosen

    backends = list(catalogue.ready("backend"))
    data = run_cells(chosen(["*-512/*", "wmt-*", "decode-4096"]), backends, catalogue,
                     Settings("cuda", "bfloat16", 3, SCALES["cuda"]), "test")  # fmt: skip
    assert not {row["status"] for cell in data["cells"] for row in cell["backends"]} & {"wrong", "failed"}
    assert all(0 < row["share"] < 1.2 for cell in data["cells"] for row in cell["backends"] if row["share"])
