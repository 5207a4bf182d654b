"""A list of backends in order of preference is short, and names each once: in a spec, in `set_backend`, in a saved plan."""

from __future__ import annotations

import json

import pytest

import tfkit
from command_line import SMALL
from tfkit.cli import main
from tfkit.files import file_record

LISTS = {
    "twice": (["sdpa", "eager", "sdpa"], "`sdpa` stands in the list at 1 and at 3"),
    "twice in two forms": (["eager", {"kind": "eager"}], "`eager` stands in the list at 1 and at 2"),
    "too many": (["sdpa", "eager"] * 5000, "a list of 10000 backends; at most 32 are possible"),
    "none": ([], "an empty list names no backend"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_refused_in_words(name, tmp_path):
    backends, words = LISTS[name]
    text = SMALL.replace("attention: {num_heads: 2}", f"attention: {{num_heads: 2, backend: {json.dumps(backends)}}}")
    with pytest.raises(tfkit.SpecError, match=f"TFK021.*{words}"):
        tfkit.parse_spec(text)
    model = tfkit.build(tfkit.parse_spec(SMALL))
    with pytest.raises(tfkit.SpecError, match=f"TFK021.*{words}"):
        model.set_backend(backends)
    saved = tfkit.save(model, tmp_path / "model")
    plan = json.loads((saved / "plan.json").read_text())
    plan["sites"] = dict.fromkeys(plan["sites"], backends)
    (saved / "plan.json").write_text(json.dumps(plan))
    versions = json.loads((saved / "versions.json").read_text())
    versions["files"]["plan.json"] = file_record(saved / "plan.json")  # whoever forges a file can forge its digest
    (saved / "versions.json").write_text(json.dumps(versions))
    with pytest.raises(tfkit.TfkitError, match=words):
        tfkit.load(saved)


def test_equal_backends_with_other_options_may_stand_in_a_list():
    model = tfkit.build(tfkit.parse_spec(SMALL))
    model.set_backend([{"kind": "sdpa", "kernel": "math"}, "sdpa"])


def test_an_argument_names_each_backend_once(tmp_path, capsys):
    (tmp_path / "small.yaml").write_text(SMALL)
    assert main(["plan", str(tmp_path / "small.yaml"), "--backend", "sdpa,sdpa"]) == 2
    assert "`sdpa` is named twice" in capsys.readouterr().err
