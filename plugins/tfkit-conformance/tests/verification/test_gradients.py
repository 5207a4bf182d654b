"""Gradients of whole models against float64: a wrong backward is found where it is, rounding is not taken for one."""

from __future__ import annotations

import copy
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tfkit
from kill_matrix.models.evaluation import LENGTHS, SPECS
from tfkit_conformance.verification import model_under_test, site_runs, verifier as run_module, verify
from tfkit_conformance.verification.properties import PROPERTIES
from verification import mutant_backends
from verification.shrunk import OVERRIDES

ROOT = Path(__file__).parents[4] / "specs"
OWN = ("site gradients", "gradients")


@pytest.fixture(autouse=True)
def only_gradients(monkeypatch):
    monkeypatch.setattr(run_module, "PROPERTIES", [each for each in PROPERTIES if each.name in OWN])


@pytest.fixture(scope="module")
def wider(catalogue):
    plugin = types.ModuleType("acme")
    plugin.tfkit_attention_backends = mutant_backends.hookimpls(catalogue.find("backend", "eager"))
    return catalogue.with_plugin(plugin, "acme")


def evaluated(spec, catalogue, **how):
    report = verify(spec, catalogue=catalogue, **{"parts": ["whole model"], **how})
    return report, {(row.property, row.backend, row.dtype): row for row in report.rows}


@pytest.mark.slow
@pytest.mark.parametrize("shape", [shape for shape in SPECS if shape != "recurrent"])  # its scores are no dot products
def test_a_correct_backward_passes_and_its_bounds_are_tight(shape, wider):
    spec = tfkit.parse_spec(SPECS[shape], wider)
    report, rows = evaluated(spec, wider, backends=["acme.right", "sdpa"], lengths=LENGTHS[shape])
    assert report.verdict == "VERIFIED"
    for backend in ("acme.right", "sdpa"):
        assert 0.01 < rows["site gradients", backend, "float32"].worst < 1
        assert 0.01 < rows["gradients", backend, "float32"].worst < 1
        assert rows["site gradients", backend, "float64"].worst is not None


def test_a_gradient_off_by_a_thousandth_at_one_site_is_found_there(wider):
    spec = tfkit.parse_spec(SPECS["encoder-decoder"].replace("num_layers: 2", "num_layers: 1"), wider)
    report, rows = evaluated(spec, wider, backends=["acme.memory_gradient"], lengths=LENGTHS["encoder-decoder"])
    assert (report.verdict, report.exit_code) == ("FAILED", 1)
    for dtype in ("float32", "float64"):
        found = rows["site gradients", "acme.memory_gradient", dtype]
        assert (found.status, found.tensor) == ("failed", "gradient of query")
        assert "acme.memory_gradient at decoder.0.cross_attention" in found.message
        assert abs(found.got / found.want - 1.001) < 1e-4


def test_a_backward_that_is_wrong_only_after_another_forward_is_found(wider):
    """Each call evaluated alone is right; the layers of a model have equal shapes."""
    spec = tfkit.parse_spec(SPECS["decoder"], wider)
    parts = ["sub-layers", "whole model"]
    report, rows = evaluated(spec, wider, backends=["acme.workspace"], lengths=LENGTHS["decoder"], parts=parts)
    assert {row.status for row in report.rows if row.property.startswith("attention")} == {"passed"}
    assert rows["site gradients", "acme.workspace", "float32"].status == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_gradient_off_by_a_thousandth_is_found_and_named(dtype, catalogue, monkeypatch):
    spec = tfkit.parse_spec(SPECS["decoder"], catalogue)
    names = [name for name, _ in tfkit.build(spec, catalogue).named_parameters()]
    exact = site_runs.backward
    for name in names:

        def wrong(model, batch, towards, name=name):
            found = exact(model, batch, towards)
            found.gradients[name] = 1.001 * found.gradients[name]
            return found

        monkeypatch.setattr(model_under_test, "backward", wrong)
        _, rows = evaluated(spec, catalogue, backends=["sdpa"], lengths=LENGTHS["decoder"], dtypes=(dtype,))
        row = rows["gradients", "sdpa", dtype]
        assert row.status == "failed", f"{name}: its keys are rotated, so that a key bias is seen"
        assert f"the gradient of `{name}`[" in row.message
        assert row.got / row.want == pytest.approx(1.001, abs=1e-4)


@pytest.mark.slow
def test_what_the_sites_are_off_by_explains_a_backend_that_rounds_more(catalogue):
    """Each site keeps its contract, and sdpa's gradients are a hundred times as far off as eager's: no error by itself."""
    spec = tfkit.load_spec(ROOT / "tiny-normless.yaml", catalogue, ["encoder.num_layers=2", "decoder.num_layers=2"])
    report, _ = evaluated(spec, catalogue, backends=["sdpa", "eager"])
    assert report.verdict == "VERIFIED"


@pytest.mark.slow
def test_a_norm_less_encoder_whose_gradients_sdpa_loses_is_reported(catalogue):
    """dS = P (dP - D) cancels: the right gradient is next to nothing, and what sdpa gives is hundreds. Rounding decides what is
    said of eager in float32, but never that its gradients are right. Float64 decides as long as its own rounding is small."""

    def of_layers(count):
        changes = [*OVERRIDES["tiny-normless"], f"encoder.num_layers={count}"]
        return tfkit.load_spec(ROOT / "tiny-normless.yaml", catalogue, changes)

    report, rows = evaluated(of_layers(12), catalogue, backends=["sdpa", "eager"])
    found = rows["gradients", "sdpa", "float32"]
    assert (report.verdict, found.status) == ("FAILED", "failed")
    assert "need not lower the loss" in found.message
    assert "a norm before attention" in found.message
    assert rows["gradients", "eager", "float32"].status in ("reported", "failed")
    _, rows = evaluated(of_layers(8), catalogue, backends=["eager"])
    assert rows["gradients", "eager", "float64"].status == "passed"


@pytest.mark.slow
def test_checkpointed_stacks_shared_tables_and_own_scores_are_evaluated(catalogue):
    for name in ("deepnet-18-18", "t5-small", "tiny-additive"):
        spec = tfkit.load_spec(ROOT / f"{name}.yaml", catalogue, OVERRIDES[name])
        report, rows = evaluated(spec, catalogue, backends=["eager", "sdpa"])
        assert report.verdict == ("INCOMPLETE" if name == "tiny-additive" else "VERIFIED"), name
        row = rows["site gradients", "eager", "float32"]
        if name == "tiny-additive":
            assert (row.status, row.message[:32]) == ("not applicable", "the reference computes dot produ")
        else:
            assert row.worst > 0.01, name
        assert rows["gradients", "eager", "float32"].status == "passed"


@pytest.mark.slow
def test_what_rounding_hides_is_decided_in_float64_or_not_at_all(wider, monkeypatch):
    """A backend without float64 gets no column of it, and where float32 cannot decide, nothing does.

    The gradients are computed in float64: in float32 the rounding of the processor says whether they are wrong here.
    """
    measured = site_runs.backward

    def rounded_once(model, batch, towards):
        found = measured(model, batch, towards)
        if model.dtype == torch.float32:
            wide = copy.deepcopy(model).double()
            wide.set_backend("eager")
            exact = measured(wide, batch, towards).gradients
            found.gradients.update({name: gradient.float() for name, gradient in exact.items() if gradient is not None})
        return found

    monkeypatch.setattr(model_under_test, "backward", rounded_once)
    eager = wider.find("backend", "eager")
    entry = replace(eager, name="acme.single", capabilities=eager.capabilities.model_copy(update={"dtypes": {"float32"}}))
    plugin = types.ModuleType("acme2")
    plugin.tfkit_attention_backends = tfkit.plugin.hookimpl(lambda: [entry])
    catalogue = wider.with_plugin(plugin, "acme2")
    short = ["encoder.num_layers=9"]
    spec = tfkit.load_spec(ROOT / "tiny-normless.yaml", catalogue, [*OVERRIDES["tiny-normless"], *short])
    report, rows = evaluated(spec, catalogue, backends=["acme.single"])
    assert {row.dtype for row in report.rows} == {"float32"}
    found = rows["gradients", "acme.single", "float32"]
    assert (report.verdict, found.status) == ("INCOMPLETE", "inconclusive")
    assert found.message.endswith("acme.single declares no float64 to decide in")
    _, rows = evaluated(spec, catalogue, backends=["eager"])
    assert rows["gradients", "eager", "float32"].message.endswith("; float64 decides")
