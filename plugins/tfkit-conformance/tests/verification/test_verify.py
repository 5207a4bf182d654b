"""`verify` as a function: what it evaluates, what it refuses, what it says of devices that are not here."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch.nn.utils import parametrizations, prune

import tfkit
from kill_matrix.models.evaluation import LENGTHS, SPECS
from tfkit import InputError, SpecError
from tfkit_conformance.verification import verify
from tfkit_conformance.verification.batch import draw, lengths_for
from tfkit_conformance.verification.decoding import compositions
from tfkit_conformance.verification.recording import record


@pytest.fixture(scope="module")
def spec(catalogue):
    return tfkit.parse_spec(SPECS["encoder-decoder"].replace("backend: eager", "backend: [sdpa, eager]"), catalogue)


@pytest.fixture(scope="module")
def report(spec, catalogue):
    return verify(spec, dtypes=("float32",), lengths=LENGTHS["encoder-decoder"], catalogue=catalogue)


@pytest.mark.slow
def test_every_site_is_evaluated_with_every_backend_that_the_spec_allows(report, spec):
    sites = {row.where for row in report.rows if row.property.startswith("attention")}
    assert sites == set(tfkit.build(spec, device="meta").sites)
    evaluated = {
        (row.where, row.backend) for row in report.rows if row.property.startswith("attention") and row.worst is not None
    }
    assert evaluated == {(site, backend) for site in sites for backend in ("sdpa", "eager")}


@pytest.mark.slow
def test_a_backend_without_gradients_is_evaluated_forward_and_one_that_refuses_says_why(catalogue):
    text = SPECS["decoder"].replace("head_dim: 12, ", "head_dim: 12, softcap: 20.0, ")
    spec = tfkit.parse_spec(text, catalogue)
    report = verify(spec, lengths={"tokens": 4}, backends=["flex", "sdpa"], parts=["sub-layers"], catalogue=catalogue)
    found = {row.backend: row for row in report.rows if row.property.startswith("attention")}
    assert (found["flex"].status, found["sdpa"].status) == ("passed", "refused")
    assert "no backward on the CPU" in found["flex"].message
    assert "softcap" in found["sdpa"].message


@pytest.mark.slow
def test_the_whole_model_is_evaluated_in_the_dtype_and_in_float64(report):
    assert {(r.dtype, r.backend) for r in report.rows if r.property == "decoding in chunks"} == {
        (dtype, backend) for dtype in ("float32", "float64") for backend in ("sdpa", "eager")
    }
    assert report.verdict == "VERIFIED"
    json.dumps(report.as_data())


@pytest.mark.slow
def test_a_trained_model_is_evaluated_with_its_own_weights_and_left_as_it_is(spec, catalogue):
    model = tfkit.build(spec, catalogue, backend="eager")
    before, sites = {name: tensor.clone() for name, tensor in model.state_dict().items()}, model.sites
    report = verify(model, lengths=LENGTHS["encoder-decoder"], catalogue=catalogue)
    assert (report.verdict, report.backends, report.weights) == ("VERIFIED", ("eager",), "as given")
    assert model.training
    assert model.sites == sites
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_an_absent_device_is_not_run_and_never_passes(spec, catalogue):
    report = verify(spec, devices=("cuda",), catalogue=catalogue)
    assert [(row.status, row.message) for row in report.rows] == [("not run", "there is no device cuda here")]
    assert (report.verdict, report.exit_code) == ("INCOMPLETE", 3)


@pytest.mark.slow
def test_the_layers_of_a_stack_are_checked_as_an_output(catalogue):
    text = SPECS["encoder-decoder"].replace("outputs: [logits]", "outputs: [logits, encoder.layers, decoder.layers]")
    model = tfkit.build(tfkit.parse_spec(text, catalogue), catalogue, backend="eager")
    assert verify(model, lengths=LENGTHS["encoder-decoder"], catalogue=catalogue).verdict == "VERIFIED"

    def of_other_rows(module, given, output):
        return replace(output, layers=tuple(layer.roll(1, 0) for layer in output.layers))

    model.nodes["encoder"].register_forward_hook(of_other_rows)
    report = verify(model, lengths=LENGTHS["encoder-decoder"], parts=["whole model"], catalogue=catalogue)
    failed = [row for row in report.rows if row.status == "failed"]
    assert {"batch split", "padding content"} <= {row.property for row in failed}
    assert all("`encoder.layers`" in row.message for row in failed if row.property == "batch split")


def test_wrong_input_is_refused_in_words(spec, catalogue):
    with pytest.raises(InputError, match="`backends` is empty; name a backend, or leave it out"):
        verify(spec, backends=[])
    with pytest.raises(SpecError, match="no attention backend `egaer`"):
        verify(spec, backends=["egaer"], catalogue=catalogue)
    with pytest.raises(InputError, match="no input `src`"):
        verify(spec, lengths={"src": 3}, catalogue=catalogue)
    with pytest.raises(InputError, match="float31"):
        verify(spec, dtypes=("float31",), catalogue=catalogue)
    with pytest.raises(InputError, match="batch is 0"):
        verify(spec, batch=0, catalogue=catalogue)
    without_weights = "tfkit: 1\nname: z\nnodes: {a: {kind: features, size: 3}}\noutputs: [a]\n"
    with pytest.raises(InputError, match="the model has no weights"):
        verify(tfkit.parse_spec(without_weights, catalogue), catalogue=catalogue)


@pytest.mark.slow
def test_one_row_of_one_token_is_checked_as_far_as_possible(spec, catalogue):
    report = verify(spec, batch=1, lengths={"source": 1, "target": 1}, backends=["eager"], catalogue=catalogue)
    assert report.verdict == "VERIFIED"
    assert {row.property for row in report.rows if row.status == "not applicable"} >= {"batch split", "causal independence"}


def test_a_batch_is_whole_right_and_left_padded_and_its_inputs_differ(spec, catalogue):
    model = tfkit.build(spec, catalogue)
    batch = draw(model, lengths_for(tfkit.graph_of(spec), None), 3, 0, "cpu")
    source, target = batch.visible["source"], batch.visible["target"]
    assert source.shape != target.shape
    ends = {name: [(bool(row[0]), bool(row[-1])) for row in shown] for name, shown in batch.visible.items()}
    assert ends == {
        "source": [(True, True), (True, False), (False, True)],
        "target": [(True, False), (False, True), (True, True)],
    }
    assert source[0].all()
    assert target[2].all()
    assert (batch.ids["target"][target.logical_not()] == 0).all()
    assert (batch.ids["target"] == 2).sum(1).tolist() == [1, 1, 1]


def test_a_recording_holds_every_call_and_leaves_nothing_behind(spec, catalogue):
    model = tfkit.build(spec, catalogue).eval()
    batch = draw(model, LENGTHS["encoder-decoder"], 3, 0, "cpu")
    choices = [attention.choices[index] for attention, index, _ in model.attention_sites()]
    with torch.no_grad():
        want = model(**batch.call())["logits"]
    found = record(model, batch)
    assert torch.equal(found.nodes["logits"].output.tensor, want)
    assert set(found.sites) == set(model.sites)
    assert set(found.layers) == {("encoder", 0), ("decoder", 0), ("decoder", 1)}
    assert found.sites["decoder.1.cross_attention"][0].inputs.key.shape[2] == LENGTHS["encoder-decoder"]["source"]
    assert [attention.choices[index] for attention, index, _ in model.attention_sites()] == choices
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_compositions_are_complete():
    assert sorted(compositions(4)) == [[1, 1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 3], [2, 1, 1], [2, 2], [3, 1], [4]]
    assert len(list(compositions(6))) == 32


@pytest.mark.slow
def test_a_named_backend_that_serves_no_call_leaves_the_proof_incomplete(catalogue):
    spec = tfkit.parse_spec(SPECS["decoder"].replace("head_dim: 12, ", "head_dim: 12, softcap: 20.0, "), catalogue)
    report = verify(spec, lengths={"tokens": 4}, backends=["eager", "sdpa"], catalogue=catalogue)
    assert (report.verdict, report.exit_code) == ("INCOMPLETE", 3)
    assert {row.backend for row in report.missed} == {"sdpa"}


CHANGED = {
    "pruned": (lambda linear: prune.random_unstructured(linear, "weight", 0.5), "is pruned"),
    "parametrised": (lambda linear: parametrizations.weight_norm(linear), "is parametrised"),
    "a buffer": (lambda linear: linear.register_buffer("mask", torch.ones(1)), "mask"),
}


@pytest.mark.parametrize("change", CHANGED)
def test_a_model_that_its_spec_does_not_describe_is_refused_with_the_way_out(change, catalogue):
    model = tfkit.build(tfkit.parse_spec(SPECS["decoder"], catalogue), catalogue, seed=0)
    alter, words = CHANGED[change]
    alter(model.nodes["body"].layers[0].branches["ffn"].input)
    with pytest.raises(tfkit.TfkitError, match=words):
        verify(model)


def test_parameters_with_one_memory_are_found_although_a_copy_separates_them(catalogue):
    model = tfkit.build(tfkit.parse_spec(SPECS["encoder-decoder"], catalogue), catalogue, seed=0)
    first, second = (layer.branches["ffn"].input for layer in model.nodes["decoder"].layers)
    second.weight.data = first.weight.data
    with pytest.raises(InputError, match=r"layers\.0\..*ffn\.input\.weight` and `.*layers\.1\..*are one tensor"):
        verify(model)


def test_weights_that_are_not_finite_fail_and_raise_nothing(catalogue):
    model = tfkit.build(tfkit.parse_spec(SPECS["encoder-decoder"], catalogue), catalogue, seed=0)
    model.nodes["decoder"].layers[0].branches["ffn"].output.weight.data[3, 3] = float("nan")
    assert verify(model).verdict == "FAILED"


def test_a_model_without_a_trainable_parameter_is_verified(catalogue):
    model = tfkit.build(tfkit.parse_spec(SPECS["encoder-decoder"], catalogue), catalogue, seed=0).requires_grad_(False)
    report = verify(model)
    assert report.verdict == "VERIFIED", str(report)
    assert {row.status for row in report.rows if row.property in ("gradients", "gradient flow")} == {"not applicable"}


@pytest.mark.parametrize("wrong", [lambda y: y.detach(), lambda y: y + 0.001 * (y - y.detach())])
def test_a_gradient_that_is_wrong_in_training_mode_alone_is_found(wrong, catalogue):
    model = tfkit.build(tfkit.parse_spec(SPECS["decoder"], catalogue), catalogue, seed=0)
    value = model.nodes["body"].layers[1].branches["self_attention"].value
    value.register_forward_hook(lambda module, arguments, y: wrong(y) if module.training else y)
    report = verify(model)
    assert "gradients" in {row.property for row in report.rows if row.status == "failed"}, str(report)


def test_a_linear_map_of_torch_in_the_place_of_a_fast_one_is_verified(monkeypatch, catalogue):
    monkeypatch.setattr("tfkit.cpu.products.MIN_TRAINING_WORK", 0)  # so that the fast one rounds in its own order
    text = SPECS["decoder"].replace("d_ff: 20", "d_ff: 200")
    model = tfkit.build(tfkit.parse_spec(text, catalogue), catalogue, seed=0)
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            plain = torch.nn.Linear(module.in_features, module.out_features, module.bias is not None)
            plain.load_state_dict(module.state_dict())
            model.set_submodule(name, plain)
    report = verify(model, dtypes=("float32",), lengths=LENGTHS["decoder"], catalogue=catalogue)
    assert {row.status for row in report.rows if row.property == "checkpoint"} == {"passed"}
    assert report.verdict == "VERIFIED", str(report)
