"""A saved model: the same numbers bit for bit, whole or not at all, and no pickle."""

from __future__ import annotations

import json
import pickletools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit.io import saving as store
from tfkit.nn.model import Model

FILES = {"spec.yaml", "model.safetensors", "plan.json", "versions.json"}


@pytest.fixture
def spec(catalogue: tfkit.Catalogue) -> tfkit.ModelSpec:
    return tfkit.parse_spec(SPEC, catalogue)


SPEC = """
tfkit: 1
name: small
defaults:
  d_model: 24
  vocab_size: 50
  pad_id: 0
  dropout: 0.1
  position: {kind: relative_t5, buckets: 8, max_distance: 9}
  placement: pre
  norm: rms_norm
  attention: {num_heads: 4, num_kv_heads: 2}
  ffn: {d_ff: 24, activation: swiglu}
nodes:
  source:  {kind: tokens, scale: sqrt_d_model}
  target:  {kind: tokens, share: source, start_id: 1, end_id: 2}
  encoder: {kind: stack, input: source, num_layers: 1}
  decoder: {kind: stack, input: target, memory: encoder, layers: [{repeat: 2, shared: true}, {}], causal: true}
  logits:  {kind: token_logits, input: decoder, share: source, bias: frozen}
outputs: [logits]
"""


@pytest.fixture
def model(spec: tfkit.ModelSpec, catalogue: tfkit.Catalogue) -> Model:
    return tfkit.build(spec, catalogue, seed=3).eval()


@pytest.fixture
def logits_of() -> Callable[[Model], Tensor]:
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randint(0, 50, (3, 9), generator=generator), torch.randint(0, 50, (3, 7), generator=generator)

    def run(model: Model) -> Tensor:
        with torch.no_grad():
            return model.eval()(source=source, target=target)["logits"]

    return run


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_same_numbers_come_back(
    dtype: torch.dtype, spec: tfkit.ModelSpec, catalogue: tfkit.Catalogue, tmp_path: Path, logits_of: Callable[[Model], Tensor]
) -> None:
    model = tfkit.build(spec, catalogue, dtype=dtype, seed=3)
    with torch.no_grad():
        model.nodes["logits"].bias.normal_()
    where = tfkit.save(model, tmp_path / "deep" / "out")
    assert where == tmp_path / "deep" / "out"
    assert names(where) == FILES
    assert names(where.parent) == {"out"}
    back = tfkit.load(where)
    assert torch.equal(logits_of(back), logits_of(model))
    assert back.spec == model.spec
    state, saved = model.state_dict(), back.state_dict()
    assert list(saved) == list(state)
    for name, tensor in state.items():
        assert saved[name].dtype is dtype
        assert torch.equal(saved[name], tensor)
    trainable = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert {name: parameter.requires_grad for name, parameter in back.named_parameters()} == trainable
    assert not trainable["nodes.logits.bias"]
    back.train()(source=torch.ones(1, 2).long(), target=torch.ones(1, 2).long())["logits"].sum().backward()


@pytest.mark.slow
def test_requested_backends_of_every_site_are_loaded(
    model: Model, tmp_path: Path, logits_of: Callable[[Model], Tensor]
) -> None:
    model.set_backend({"kind": "sdpa", "kernel": "math"}, "encoder.*")
    model.set_backend(["flex", "eager"], "decoder.1.*")
    back = tfkit.load(tfkit.save(model, tmp_path / "out"))
    assert back.requested_backends == model.requested_backends
    assert back.sites == model.sites
    assert torch.equal(logits_of(back), logits_of(model))
    assert set(tfkit.load(tmp_path / "out", backend="eager").sites.values()) == {"eager"}


def test_an_unsupported_backend_request_can_be_replaced_at_loading(
    model: Model, tmp_path: Path, logits_of: Callable[[Model], Tensor]
) -> None:
    tfkit.save(model, tmp_path / "out")
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    plan["sites"] = {site: [{"kind": "sdpa", "kernel": "cudnn"}] for site in plan["sites"]}
    rewrite(tmp_path / "out", "plan.json", json.dumps(plan).encode())
    with pytest.raises(tfkit.BackendRefused, match="CUDA only"):
        tfkit.load(tmp_path / "out")
    assert torch.equal(logits_of(tfkit.load(tmp_path / "out", backend="auto")), logits_of(model))


def test_a_saved_model_loads_with_the_backends_that_were_set(
    spec: tfkit.ModelSpec, catalogue: tfkit.Catalogue, tmp_path: Path
) -> None:
    spec_with_cudnn = tfkit.parse_spec(SPEC.replace("num_kv_heads: 2", "backend: {kind: sdpa, kernel: cudnn}"), catalogue)
    with pytest.raises(tfkit.BackendRefused):
        tfkit.build(spec_with_cudnn, catalogue)
    tfkit.save(tfkit.build(spec_with_cudnn, catalogue, backend="eager"), tmp_path / "out")
    assert set(tfkit.load(tmp_path / "out").sites.values()) == {"eager"}


def rewrite(directory: Path, name: str, content: bytes) -> None:
    """Alter a file as someone would who also writes its new size and digest."""
    (directory / name).write_bytes(content)
    versions = json.loads((directory / "versions.json").read_text())
    versions["files"][name] = store.file_record(directory / name)
    (directory / "versions.json").write_text(json.dumps(versions))


def test_existing_files_are_not_replaced_without_force(
    model: Model, tmp_path: Path, logits_of: Callable[[Model], Tensor]
) -> None:
    tfkit.save(model, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(tfkit.StoreError, match=r"TFK080.*exists already"):
        tfkit.save(model, tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    tfkit.save(model, tmp_path / "out", overwrite=True)
    assert names(tmp_path) == {"out"}
    assert torch.equal(logits_of(tfkit.load(tmp_path / "out")), logits_of(model))


@pytest.mark.parametrize("what", ["file", "directory"])
def test_overwrite_replaces_a_saved_model_and_nothing_else(what: str, model: Model, tmp_path: Path) -> None:
    place = tmp_path / "thesis"
    if what == "file":
        place.write_text("chapter one")
    else:
        place.mkdir()
        (place / "chapter.txt").write_text("one")
    with pytest.raises(tfkit.StoreError, match=r"TFK080.*no saved model"):
        tfkit.save(model, place, overwrite=True)
    assert (place if what == "file" else place / "chapter.txt").read_text().endswith("one")
    assert names(tmp_path) == {"thesis"}


@pytest.mark.parametrize("listing", ["{}", "[]", '{"format": 1, "files": {}}', "", "{", "[" * 100_000])
def test_an_invalid_listing_is_refused(listing: str, model: Model, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "versions.json").write_text(listing)
    (tmp_path / "thesis" / "chapter.txt").write_text("one")
    with pytest.raises(tfkit.StoreError, match=r"TFK080.*thesis exists and is no saved model.*versions\.json"):
        tfkit.save(model, tmp_path / "thesis", overwrite=True)
    assert names(tmp_path / "thesis") == {"versions.json", "chapter.txt"}
    assert names(tmp_path) == {"thesis"}


@pytest.mark.parametrize("what", ["file", "hidden file", "directory", "link", "file in the place of another"])
def test_overwrite_keeps_foreign_files(what: str, model: Model, tmp_path: Path) -> None:
    place = tfkit.save(model, tmp_path / "out")
    name = {"hidden file": ".env", "file in the place of another": "plan.json"}.get(what, "notes")
    if what == "directory":
        (place / name).mkdir()
    elif what == "link":
        (place / name).symlink_to(tmp_path)
    elif what == "file in the place of another":
        (place / name).unlink()
        (place / name).mkdir()
    else:
        (place / name).write_text("mine")
    before = names(place)
    with pytest.raises(tfkit.StoreError, match=rf"TFK080.*out is not replaced: it holds {name}, which tfkit did not write"):
        tfkit.save(model, place, overwrite=True)
    assert names(place) == before
    assert names(tmp_path) == {"out"}


def test_overwrite_replaces_the_tokenisers_of_a_saved_model_too(model: Model, tmp_path: Path) -> None:
    tfkit.save(model, tmp_path / "out", texts={"tokeniser.json": "one"})
    tfkit.save(model, tmp_path / "out", overwrite=True)
    assert names(tmp_path / "out") == FILES


@pytest.mark.parametrize("target", ["model", "empty", "nowhere"])
def test_a_link_is_not_replaced(target: str, model: Model, tmp_path: Path) -> None:
    tfkit.save(model, tmp_path / "model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "out").symlink_to(target)
    with pytest.raises(tfkit.StoreError, match=r"TFK080.*out exists.*it is a link"):
        tfkit.save(model, tmp_path / "out", overwrite=True)
    assert names(tmp_path) == {"model", "empty", "out"}
    assert names(tmp_path / "model") == FILES


def test_files_that_appear_during_a_save_are_kept(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logits_of: Callable[[Model], Tensor]
) -> None:
    place = tfkit.save(model, tmp_path / "out")
    want, rename = logits_of(model), Path.rename

    def appear_and_rename(self: Path, target: Path) -> Path:
        if self == place:
            (place / "notes").write_text("mine")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", appear_and_rename)
    with pytest.raises(tfkit.StoreError, match=r"TFK080.*holds notes"):
        tfkit.save(model, place, overwrite=True)
    assert [path.read_text() for path in tmp_path.rglob("notes")] == ["mine"]
    assert torch.equal(logits_of(tfkit.load(place)), want)


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/b", "..", "", "plan.json", "versions.json", "a\0b"])
def test_texts_are_saved_with_the_model_under_other_names_than_its_files(name: str, model: Model, tmp_path: Path) -> None:
    with pytest.raises(tfkit.StoreError, match="TFK081"):
        tfkit.save(model, tmp_path / "out", texts={name: "text"})
    assert names(tmp_path) == set()


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_directory_can_have(name: str, model: Model, tmp_path: Path) -> None:
    with pytest.raises(tfkit.StoreError, match="TFK081"):
        tfkit.save(model, tmp_path / name)
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*no file can have this name"):
        tfkit.load(tmp_path / name)


def test_an_empty_directory_may_be_used_with_overwrite(model: Model, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    tfkit.save(model, tmp_path / "out", overwrite=True)
    assert names(tmp_path / "out") == FILES


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_missing_file_is_named(name: str, model: Model, tmp_path: Path) -> None:
    tfkit.save(model, tmp_path / "out")
    (tmp_path / "out" / name).unlink()
    with pytest.raises(tfkit.StoreError, match=rf"TFK082.*{name}"):
        tfkit.load(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spec.yaml", "model.safetensors", "plan.json"])
@pytest.mark.parametrize("how", ["cut off", "one byte", "emptied"])
def test_an_altered_file_is_named_with_both_sizes(how: str, name: str, model: Model, tmp_path: Path) -> None:
    path = tfkit.save(model, tmp_path / "out") / name
    content = bytearray(path.read_bytes())
    if how == "one byte":
        content[len(content) // 2] ^= 1
    path.write_bytes({"cut off": content[:-7], "one byte": content, "emptied": b""}[how])
    with pytest.raises(tfkit.StoreError, match=rf"TFK082.*{name} has [\d,]+ bytes.*SHA-256.*altered or cut off"):
        tfkit.load(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b'{"format": 1}', b'{"format": 99}', b'{"format": 1, "files": []}',
        b'{"format": 1, "files": {}, "dtype": "float32"}',
    ],
)  # fmt: skip
def test_broken_versions_are_an_error_that_names_them(content: bytes, model: Model, tmp_path: Path) -> None:
    (tfkit.save(model, tmp_path / "out") / "versions.json").write_bytes(content)
    with pytest.raises(tfkit.StoreError, match=r"TFK08[23]"):
        tfkit.load(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [("dtype", "load"), ("dtype", 3), ("dtype", "int8"), ("files", {"spec.yaml": {}}), ("files", "all"), ("dtype", None)],
)
def test_an_altered_entry_of_versions_is_an_error(key: str, value: Any, model: Model, tmp_path: Path) -> None:
    path = tfkit.save(model, tmp_path / "out") / "versions.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*versions\.json"):
        tfkit.load(tmp_path / "out")


@pytest.mark.parametrize(
    "content", [b"{}", b'{"sites": []}', b'{"sites": {"encoder.9.self_attention": ["eager"]}}', b'{"sites": {}}']
)
def test_a_plan_of_another_model_is_an_error(content: bytes, model: Model, tmp_path: Path) -> None:
    tfkit.save(model, tmp_path / "out")
    rewrite(tmp_path / "out", "plan.json", content)
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*plan\.json"):
        tfkit.load(tmp_path / "out")


def test_weights_of_another_model_are_an_error(model: Model, tmp_path: Path) -> None:
    from safetensors.torch import save

    tfkit.save(model, tmp_path / "out")
    state = model.state_dict()
    name = "nodes.source.embedding.weight"
    for wrong in (
        {**state, name: state[name][:9].contiguous()},
        {key: tensor for key, tensor in state.items() if key != name},
        {**state, "more": torch.zeros(1)},
        {**state, name: state[name].double()},
    ):
        rewrite(tmp_path / "out", "model.safetensors", save(wrong))
        with pytest.raises(tfkit.StoreError, match=r"TFK082.*model\.safetensors.*(embedding|more)"):
            tfkit.load(tmp_path / "out")
    rewrite(tmp_path / "out", "model.safetensors", b"not tensors")
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*model\.safetensors"):
        tfkit.load(tmp_path / "out")


@pytest.mark.parametrize("what", ["nowhere", "a file"])
def test_a_place_without_a_model_is_an_error(what: str, tmp_path: Path) -> None:
    place = tmp_path / "x"
    if what == "a file":
        place.write_text("")
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*versions\.json"):
        tfkit.load(place)


class Halt(BaseException):
    """Ctrl-C, say."""


@pytest.mark.slow
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Halt()], ids=["disk full", "interrupt"])
@pytest.mark.parametrize("old", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("at", ["save_file", "_write_json", "file_record", "rename first", "rename second"])
def test_an_interrupted_write_changes_nothing(
    at: str,
    old: bool,
    error: BaseException,
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logits_of: Callable[[Model], Tensor],
) -> None:
    want = logits_of(model)
    if old:
        tfkit.save(model, tmp_path / "out")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
    if at.startswith("rename"):
        if at == "rename second" and not old:
            return  # there is only one
        rename, left = Path.rename, [1 if at == "rename first" else 2]

        def fail(self: Path, target: Path) -> Path:
            left[0] -= 1
            if left[0] == 0:
                raise error
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", fail)
    else:
        original = getattr(store, at)

        def write_and_fail(*arguments: Any) -> None:
            original(*arguments)
            raise error

        monkeypatch.setattr(store, at, write_and_fail)
    with pytest.raises(Halt if isinstance(error, Halt) else tfkit.StoreError) as raised:
        tfkit.save(model, tmp_path / "out", overwrite=True)
    monkeypatch.undo()
    if not isinstance(error, Halt):
        assert "TFK081" in str(raised.value)
        assert "No space left" in str(raised.value)
    assert names(tmp_path) == ({"out"} if old else set())
    if old:
        assert torch.equal(logits_of(tfkit.load(tmp_path / "out")), want)


FULL = """
import resource, sys, tfkit
model = tfkit.load(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
try:
    tfkit.save(model, sys.argv[2], overwrite=True)
except tfkit.StoreError as error:
    print(error)
else:
    sys.exit("it was written")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("old", [False, True], ids=["new", "overwrite"])
def test_a_full_disk_leaves_nothing_half_written(
    old: bool, model: Model, tmp_path: Path, logits_of: Callable[[Model], Tensor]
) -> None:
    tfkit.save(model, tmp_path / "one")
    place = tmp_path / ("one" if old else "two")
    run = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path / "one", place, "20000"], capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr
    assert "TFK081" in run.stdout
    assert "too large" in run.stdout
    assert names(tmp_path) == {"one"}
    assert torch.equal(logits_of(tfkit.load(tmp_path / "one")), logits_of(model))


def test_a_place_that_cannot_be_written_is_an_error(model: Model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(tfkit.StoreError, match=r"TFK081.*cannot be written"):
        tfkit.save(model, tmp_path / "file" / "out")
    assert names(tmp_path) == {"file"}


def test_no_pickle_is_in_the_files(model: Model, tmp_path: Path) -> None:
    for path in tfkit.save(model, tmp_path / "out").iterdir():
        content = path.read_bytes()
        assert not content.startswith((b"\x80", b"PK"))
        with pytest.raises((ValueError, IndexError)):
            list(pickletools.genops(content))


def test_a_model_without_numbers_cannot_be_saved(spec: tfkit.ModelSpec, catalogue: tfkit.Catalogue, tmp_path: Path) -> None:
    with pytest.raises(tfkit.StoreError, match=r"TFK081.*meta"):
        tfkit.save(tfkit.build(spec, catalogue, device="meta"), tmp_path / "out")
    assert names(tmp_path) == set()


def test_a_compiled_model_is_saved_like_the_model_itself(
    model: Model, tmp_path: Path, logits_of: Callable[[Model], Tensor]
) -> None:
    tfkit.save(torch.compile(model, backend="eager"), tmp_path / "out")
    assert torch.equal(logits_of(tfkit.load(tmp_path / "out")), logits_of(model))


def test_it_can_be_read_by_others(model: Model, tmp_path: Path, catalogue: tfkit.Catalogue) -> None:
    """The directory's rights are those of any new directory, and each file is what it seems."""
    from safetensors.torch import load_file

    where = tfkit.save(model, tmp_path / "out")
    (tmp_path / "plain").mkdir()
    assert where.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert set(load_file(where / "model.safetensors")) == set(model.state_dict())
    assert tfkit.load_spec(where / "spec.yaml", catalogue) == model.spec
    versions = json.loads((where / "versions.json").read_text())
    assert versions["torch"] == torch.__version__
    assert versions["plugins"]["tfkit"] == tfkit.__version__
    assert {row["site"] for row in json.loads((where / "plan.json").read_text())["table"]} == set(model.sites)


def test_tied_tensors_are_reported_before_the_save(model: Model, tmp_path: Path) -> None:
    decoder, encoder = model.nodes["decoder"], model.nodes["encoder"]
    decoder.layers[0].norms["self_attention"].weight = encoder.layers[0].norms["self_attention"].weight
    with pytest.raises(tfkit.StoreError, match="TFK081"):
        tfkit.save(model, tmp_path / "out")
    assert names(tmp_path) == set()


@pytest.mark.parametrize("same_size", [False, True], ids=["another size", "another digest"])
def test_a_listing_does_not_make_a_file_of_somebody_else_removable(same_size: bool, model: Model, tmp_path: Path) -> None:
    place = tmp_path / "out"
    tfkit.save(model, place)
    (place / "thesis.tex").write_text("years of work")
    listing = json.loads((place / "versions.json").read_text())
    listing["files"]["thesis.tex"] = {"bytes": 13 if same_size else 1, "sha256": "0" * 64}
    (place / "versions.json").write_text(json.dumps(listing))
    with pytest.raises(tfkit.StoreError, match=r"holds thesis\.tex, which tfkit did not write there"):
        tfkit.save(model, place, overwrite=True)
    assert (place / "thesis.tex").read_text() == "years of work"
