"""The table that `auto` uses: as a file, as package data, and given to a catalogue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tfkit.attention.auto_table import AutoRow, AutoTable, parse_table
from tfkit.attention.capabilities import AttentionRequest
from tfkit.attention.selection import auto_row
from tfkit.errors import InputError, PluginError

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
        "print(len(table) > 5, all(row.measured or row.published for row in table), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False"]


@pytest.mark.parametrize(
    ("condition", "within", "without"),
    [
        ({"masked": True}, {"mask_terms": frozenset({"key_lengths"})}, {"mask_terms": frozenset({"causal"})}),
        ({"masked": False}, {"mask_terms": frozenset({"causal"})}, {"mask_terms": frozenset({"causal", "window"})}),
        ({"biased": True}, {"bias": "linear"}, {}),
        ({"decoding": True}, {"queries": 1}, {"queries": None}),
        ({"decoding": False}, {"queries": 2}, {"queries": 1}),
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
