"""A stored case on the part as it is now: mended, refused, on a device that is not there, or still wrong."""

import pytest
import torch

from tfkit_conformance.process.case_again import backend_case_again, law_case_again
from tfkit_conformance.process.stored import Stored
from tfkit_conformance.report import SUITE

CASE = {"B": 1, "H": 1, "G": 1, "Q": 2, "K": 3, "D": 8, "V": 8}
SITE = {"width": 8, "heads": 2, "kv_heads": 2, "head_dim": 4, "causal": False, "rows": 0, "batch": 1, "length": 2}
LAW = {"suite": SUITE, "slot": "position", "name": "rotary_half", "law": "outputs", "options": {}, "at": SITE,
       "dtype": "float32", "device": "cpu", "seed": 3}  # fmt: skip


def of_backend(catalogue, name="sdpa", check="", device="cpu", **case):
    return backend_case_again(Stored("backend", name, check, {**CASE, **case}, device), None, catalogue, 60.0)


def of_law(catalogue, device="cpu", law="outputs", **site):
    stored = Stored("position", "rotary_half", law, {**LAW, "law": law, "at": {**SITE, **site}}, device)
    return law_case_again(stored, catalogue.find("position", "rotary_half"), catalogue)


@pytest.mark.parametrize("check", ["", "layers", "import", "support", "R2 unseen_keys"])
def test_a_corrected_part_passes(catalogue, check):
    assert of_backend(catalogue, check=check) == "passed"


def test_a_case_that_is_no_longer_declared_is_refused(catalogue):
    said = of_backend(catalogue, softcap=30.0)
    assert said.startswith("refused: ")
    assert "softcap" in said


def test_a_case_at_a_refused_site_is_refused(catalogue):
    assert of_law(catalogue) == "passed"
    said = of_law(catalogue, head_dim=3)
    assert said.startswith("refused: ")
    assert "3" in said
    assert of_law(catalogue, law="declaration", head_dim=3) == "passed"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_device_is_not_run(catalogue):
    assert of_backend(catalogue, device="cuda") == "not run: there is no device cuda here"
    assert of_law(catalogue, device="cuda:1") == "not run: there is no device cuda:1 here"
