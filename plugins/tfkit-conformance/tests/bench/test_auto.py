"""The measured table of `auto`: its classes exclude each other, and its rows follow from the measured times."""

from __future__ import annotations

import pytest
import torch

from tfkit.attention.auto_table import AutoRow
from tfkit.builtin.attention.entries import EAGER, FLEX, SDPA
from tfkit.inspection import parse_table
from tfkit_conformance.bench.auto import measure_auto, table_of
from tfkit_conformance.bench.call import call_of, request_of
from tfkit_conformance.bench.cells import Scale
from tfkit_conformance.bench.classes import DTYPES, HEAD_DIMS, SCALES, classes
from tfkit_conformance.bench.measure import Settings
from tfkit_conformance.view.bench_text import auto_json, auto_text

TINY = Scale(tokens=16, width=128, cache=16)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_measured_call_is_covered_by_its_own_class_and_by_no_other(kind):
    wanted = list(classes(kind, [8]))
    rows = [AutoRow(device="cpu", dtypes={"float32"}, relative_time=1.0, **dict(each.conditions)) for each in wanted]
    names = [cell.name for each in wanted for cell in each.cells]
    assert len(names) == len(set(names))
    for number, each in enumerate(wanted):
        for cell in each.cells:
            request = request_of(call_of(cell, TINY, torch.float32, "cpu", 0), None)
            assert [index for index, row in enumerate(rows) if row.covers(request)] == [number], cell.name


def test_the_usual_classes():
    assert set(DTYPES) == set(HEAD_DIMS) == set(SCALES) == {"cpu", "cuda"}
    assert max(each.length for each in classes("cuda")) == 131072
    assert {dict(each.conditions).get("decoding") for each in classes("cpu")} == {True, False, None}


def report(times, dtype="float32"):
    """A report in which eager takes a second and sdpa what `times` gives for a cell's length; None: refused."""
    cells = []
    for each in classes("cpu", list(times)):
        for cell in each.cells:
            time = times[cell.length]
            timed = {"name": "eager", "status": "timed", "reason": "", "seconds": [1.0], "median": 1.0}
            other = {**timed, "name": "sdpa", "seconds": [time], "median": time}
            refused = {**timed, "name": "sdpa", "status": "refused", "reason": "why not", "seconds": [], "median": None}
            cells.append({"name": cell.name, "backends": [timed, other if time else refused]})
    machine = {"device": "cpu", "device_name": "M", "capability": None, "threads": 1, "versions": {"torch": "2"}}
    settings = {"dtype": dtype, "rounds": 1, "tokens": 1, "width": 1, "cache": 1}
    return {"machine": machine, "settings": settings, "command": "c", "cells": cells, "missing": [], "interrupted": False}


def test_rows_cover_all_lengths_and_neighbours_that_are_alike_share_one():
    times = {32: 0.5, 64: 0.52, 128: 0.8, 512: 0.9}
    table = table_of(list(classes("cpu", list(times))), [report(times), report({32: 0.3}, "float16")])
    rows = parse_table(auto_json(table), "x")["sdpa"]
    plain = [row for row in rows if row.masked is False and row.gradients is True]
    assert [(row.lengths, row.relative_time) for row in plain if row.dtypes == {"float32"}] == [
        ((1, 90), 0.51), ((91, 256), 0.8), ((257, None), 0.9),
    ]  # fmt: skip
    assert [(row.lengths, row.relative_time) for row in plain if row.dtypes == {"float16"}] == [((1, None), 0.3)]
    assert table["left_out"]["sdpa"]["not run"]
    assert "date" not in auto_json(table)


def test_a_refused_backend_has_no_row_and_a_reason(drawn):
    times = {32: 0.5, 64: None}
    table = table_of(list(classes("cpu", list(times))), [report(times)])
    assert all(row["lengths"] == [1, None] for row in table["rows"]["sdpa"])
    assert len(table["left_out"]["sdpa"]["why not"]) == len(list(classes("cpu", [64])))
    text = drawn(*auto_text(table), width=118)
    assert "0.50 x float32, any length" in " ".join(text.split())
    assert "sdpa has no row for 9 classes: why not" in text


@pytest.mark.exhaustive
def test_measuring_and_reading_back(catalogue, tmp_path, no_ceilings):
    progress = []
    backends = [(entry, entry.options()) for entry in (EAGER, SDPA, FLEX)]
    settings = Settings("cpu", "float32", 1, TINY)
    table, reports = measure_auto(
        list(classes("cpu", [8])),
        ["float32", "bfloat16"],
        backends,
        catalogue,
        settings,
        "c",
        progress.append,
    )
    assert [each["settings"]["dtype"] for each in reports] == ["float32", "bfloat16"]
    assert len({tuple(row["dtypes"]) for row in table["rows"]["sdpa"]}) == 2
    assert any("backward" in reason for reason in table["left_out"]["flex"])
    assert progress[-1] == "bfloat16: ceilings again"
    path = tmp_path / "auto.json"
    path.write_text(auto_json(table))
    own = catalogue.with_auto_table(path)
    assert len(own.find("backend", "flex").auto) == len(table["rows"]["flex"])
