"""Programs of torch.export and AOTInductor, loaded again, for other batches and lengths than those that were traced."""

from __future__ import annotations

import pytest
import torch

import tfkit
from fixtures import SPECS
from tfkit.interop import program_exports
from tfkit.interop.export import TARGETS
from tfkit.plugin.model_parts import load as named_function

from .engine import NODES, built
from .program_runs import decoded, programs_in

pytestmark = pytest.mark.usefixtures("one_thread")

SOURCE = torch.tensor([[3, 9, 4, 7, 2, 0, 0], [8, 5, 6, 11, 12, 30, 2], [9, 2, 0, 0, 0, 0, 0]])
IDS = torch.tensor([[1, 5, 9, 4, 22], [1, 7, 7, 30, 12], [1, 3, 17, 8, 6]])


def runner(programs, loaded):
    def run(name, tensors):
        facts = programs[name]
        # AOTInductor reads the memory of its inputs as that of contiguous tensors.
        found = loaded[name](*[tensors[each["name"]].contiguous() for each in facts["inputs"]])
        return dict(zip([each["name"] for each in facts["outputs"]], found, strict=True))

    return run


@pytest.mark.parametrize(
    ("target", "load"),
    [
        pytest.param("torch-export", lambda path: torch.export.load(path).module(), marks=pytest.mark.slow),
        pytest.param("aot-inductor", lambda path: torch._inductor.aoti_load_package(str(path)), marks=pytest.mark.exhaustive),
    ],
    ids=["torch.export", "AOTInductor"],
)
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # torch 2.11
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch, at the import of its C++ compiler
def test_two_programs_give_the_logits_of_the_model(target, load, catalogue, tmp_path, rounding):
    model = built(catalogue, NODES, ["encoder.num_layers=1", "decoder.num_layers=1"])
    assert named_function(TARGETS[target].refusals)(model) == []
    named_function(TARGETS[target].write)(model, {}, tmp_path)
    _, programs = programs_in(tmp_path)
    run = runner(programs, {name: load(tmp_path / each["file"]) for name, each in programs.items()})
    with torch.no_grad():
        for rows in (3, 1):
            theirs, ours = decoded(model, programs, run, IDS[:rows], [2, 1, 1, 1], source=SOURCE[:rows])
            assert float((theirs - ours).abs().max()) <= rounding(model, ours, 7)
    if target == "torch-export":  # each program has the weights that it reads, and no others
        named = {name: set(torch.export.load(tmp_path / each["file"]).state_dict) for name, each in programs.items()}
        both = {name.removeprefix("model.") for name in named["encode"] & named["step"]}
        assert both == {"nodes.source.embedding.weight"}
        assert len(named["encode"] | named["step"]) == len(model.state_dict())


def test_a_backend_that_cannot_be_traced_is_refused(catalogue):
    model = built(catalogue, NODES, ["encoder.num_layers=1", "decoder.num_layers=1"])
    model.set_backend("flex", "decoder.*")
    assert program_exports.torch_export_refusals(model) == [
        "the backend `flex` at decoder.0.self_attention, decoder.0.cross_attention, which does not work under torch.export"
    ]


def test_aot_inductor_refuses_a_recurrent_encoder_by_name(catalogue):
    model = tfkit.build(tfkit.load_spec(SPECS / "luong.yaml", catalogue), device="meta")
    (reason,) = program_exports.aot_inductor_refusals(model)
    assert reason.startswith("`encoder`, a recurrent node that reads whole sequences")
    assert program_exports.torch_export_refusals(model) == []


def test_without_a_compiler_nothing_is_compiled(catalogue, tmp_path, monkeypatch):
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    with pytest.raises(tfkit.BuildError, match="needs a C\\+\\+ compiler"):
        program_exports.write_aot_inductor(built(catalogue), {}, tmp_path)
    assert not list(tmp_path.iterdir())
