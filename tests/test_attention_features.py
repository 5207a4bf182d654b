"""The table of attention features. The diff of CONTRIBUTING.md that adds one touches few files, and the feature works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tfkit.builtin.sublayer.options import SelfAttentionOptions
from tfkit.inspection import FEATURES, SCORE_SETTINGS
from tfkit.plugin import AttentionRequest, Capabilities
from tfkit.slots.sublayer import AttentionSettings

ROOT = Path(__file__).parent.parent
KIT = "plugins/tfkit-conformance"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DIFF = "".join(re.findall(r"^```diff\n(.*?)^```\n", CONTRIBUTING, re.MULTILINE | re.DOTALL))

pytestmark = pytest.mark.xdist_group("attention features")  # one copy of the repository

USE = """
import json
from dataclasses import replace
import tfkit
from tfkit.builtin.attention.entries import EAGER, ENTRIES
from tfkit.inspection import check_request
from tfkit.interop.eject.program import eject
from tfkit.slots.lazy import load
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.cells import cells
from tfkit_conformance.attention.compare import error_ratios
from tfkit_conformance.mutants import ATTENTION_MUTANTS

case = Case(B=2, H=4, G=2, Q=5, K=7, bias="dense", softcap=1.5, logit_floor=-0.25, gradients=True, bias_gradient=True)

def errors(attend, **changed):
    call = replace(case, **changed)
    return error_ratios(attend, EAGER.options(), EAGER.capabilities.numerics, call.inputs(), call.grad_output())

def forgets(inputs, options):
    return load(EAGER.attend)(replace(inputs, logit_floor=None), options)

def refusal(entry):
    try:
        load(entry.attend)(case.inputs(), entry.options())
    except tfkit.BackendRefused as error:
        return error.diagnostics[0].message

spec = tfkit.load_spec("specs/transformer-tiny.yaml", overrides=["defaults.attention.logit_floor=-0.5"])
print(json.dumps({
    "file": tfkit.__file__,
    "errors": [max(errors(load(EAGER.attend), dtype=dtype).values()) for dtype in ("float64", "float32", "bfloat16")],
    "forgotten": max(errors(forgets).values()),
    "requests": {entry.name: check_request(entry, case.request(), entry.options()).refused for entry in ENTRIES},
    "sdpa": refusal(next(entry for entry in ENTRIES if entry.name == "sdpa")),
    "cells": [cell.name for cell in cells(EAGER.capabilities, True) if "logit_floor" in cell.name],
    "mutants": [mutant.name for mutant in ATTENTION_MUTANTS if "logit_floor" in mutant.name],
    "eject": eject(spec),
}))
"""


def test_every_row_names_fields_that_exist():
    requests, capabilities = {field.name for field in fields(AttentionRequest)}, set(Capabilities.model_fields)
    for feature in FEATURES:
        assert feature.name in requests
        assert feature.capability in capabilities
        assert not feature.option or feature.option in SelfAttentionOptions.model_fields


def test_a_setting_has_one_name_everywhere_and_an_equation_in_the_ejected_file():
    template = (ROOT / "tfkit/builtin/sublayer/attention.py.jinja").read_text(encoding="utf-8")
    names = {field.name for field in fields(AttentionSettings)}
    assert names == {"dropout", *(setting.name for setting in SCORE_SETTINGS)}
    for name in names:
        assert name in SelfAttentionOptions.model_fields
        assert f"o.{name}" in template


def test_the_diff_touches_at_most_8_files_of_the_core_and_4_of_the_kit():
    files = re.findall(r"^\+\+\+ b/(.+)", DIFF, re.MULTILINE)
    assert len(files) == len(set(files))
    assert sum(file.startswith("tfkit/") for file in files) <= 8
    assert sum(file.startswith(f"{KIT}/tfkit_conformance/") for file in files) <= 4
    assert all(file.startswith(("tfkit/", f"{KIT}/tfkit_conformance/")) for file in files)


def test_the_diff_applies():
    command = ["git", "apply", "--check", "-"]
    done = subprocess.run(command, cwd=ROOT, input=DIFF, text=True, capture_output=True, check=False)
    assert not done.returncode, f"the diff of CONTRIBUTING.md does not apply; write it anew: {done.stderr}"


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `USE` prints in a copy of the repository with the diff."""
    copy = tmp_path_factory.mktemp("copy")
    for part in ("tfkit", KIT, "specs"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "init", "--quiet"], cwd=copy, check=True)
    subprocess.run(["git", "apply", "-"], cwd=copy, input=DIFF, text=True, check=True)
    path = os.pathsep.join([str(copy), str(copy / KIT)])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", USE]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert Path(result["file"]).is_relative_to(copy)
    return result


@pytest.mark.slow
def test_the_new_feature_is_computed_within_the_bound_and_seen_if_it_is_not(used: dict[str, Any]):
    assert max(used["errors"]) <= 1 < used["forgotten"]
    assert "scores = scores.clamp(min=ATTENTION_LOGIT_FLOOR)" in used["eject"]


@pytest.mark.slow
def test_the_new_feature_is_refused_where_it_is_not_declared(used: dict[str, Any]):
    reasons = used["requests"]
    assert reasons.pop("eager") == []
    assert all("logit_floor is not declared" in refused for refused in reasons.values())
    assert used["sdpa"] == "`sdpa` does not declare softcap, logit_floor"
    assert used["mutants"] == ["undeclared_logit_floor_ignored"]


@pytest.mark.slow
def test_the_new_feature_has_cells(used: dict[str, Any]):
    kinds = ("dense", "linear", "distance")
    assert used["cells"] == ["logit_floor", *(f"logit_floor + {kind} bias" for kind in kinds)]
