"""Starting from another model: which weights are loaded, what is reported, and that such a run resumes exactly."""

import json
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from hostile_files import REPLACED
from kinds_task import BODY, HEAD, MODELS, recipe_for
from tfkit import InputError, SpecError, StoreError, load_recipe
from tfkit.data import read_tokenisers
from tfkit.files import file_record
from tfkit.text import model_in
from tfkit.train import resume, train
from tfkit.train.pretrained import is_share
from translation_task import SPEC, write_task

pytestmark = pytest.mark.xdist_group("pretrained")  # its module fixture is built once

STILL = ["stopping.max_steps=1", "schedule={kind: constant, peak: 1.0e-60}"]
"""A step at a rate that is 0 in float32."""


class Listener:
    """Keeps the trainer that a run began with."""

    def __init__(self):
        self.report = None

    def __getattr__(self, name):
        return lambda *arguments: None

    def on_train_start(self, trainer, changes):
        self.report = trainer.load_report


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A translator, with its text beside it."""
    folder = tmp_path_factory.mktemp("parent")
    train(load_recipe(write_task(folder)), folder / "run")
    return folder / "run"


def weights(run):
    return load_file(model_in(run) / "model.safetensors")


def started(recipe, parent, folder, *changes):
    """The weights of a run that started from `parent` and learnt nothing, and what it says that it took."""
    listener = Listener()
    train(load_recipe(recipe, [f"pretrained={parent}", *STILL, *changes]), folder / "child", callbacks=[listener])
    return weights(folder / "child"), listener.report


@pytest.mark.slow
def test_all_weights_and_the_tokeniser_are_loaded(parent, task, tmp_path):
    (tmp_path / "train.src").write_text((tmp_path / "train.src").read_text().replace("dog", "hippopotamus"))
    found, report = started(task, parent, tmp_path, "seed=9")
    wanted = weights(parent)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert (report.loaded, report.skipped) == (report.total, ())
    assert report.place == model_in(parent)
    mine, theirs = (read_tokenisers(run, ("source",))["source"].digest for run in (tmp_path / "child", parent))
    assert mine == theirs


def list_again(place, name):
    """Write down the size and digest of a file of a saved model that was changed."""
    versions = json.loads((place / "versions.json").read_text())
    versions["files"][name] = file_record(place / name)
    (place / "versions.json").write_text(json.dumps(versions))


@pytest.mark.slow
def test_a_model_whose_backend_does_not_run_here_can_be_started_from(parent, task, tmp_path):
    place = shutil.copytree(model_in(parent), tmp_path / "parent")
    plan = json.loads((place / "plan.json").read_text())
    plan["sites"] = {site: ["cudnn"] for site in plan["sites"]}
    (place / "plan.json").write_text(json.dumps(plan))
    list_again(place, "plan.json")
    found, _ = started(task, place, tmp_path)
    assert all(torch.equal(found[name], value) for name, value in weights(parent).items())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["link", "named pipe", "directory", "empty", "object", "deep", "sparse"])
@pytest.mark.parametrize("name", ["models/best.json", "models/BEST/versions.json", "models/BEST/source.json"])
def test_a_run_with_a_file_replaced_is_no_model_to_start_from(parent, task, tmp_path, name, how):
    place = shutil.copytree(parent, tmp_path / "parent")
    path = place / name.replace("BEST", model_in(place).name)
    if not path.exists():  # one vocabulary for both sides
        path = path.with_name("tokeniser.json")
    REPLACED[how](path)
    with pytest.raises(InputError, match=r"TFK117 pretrained: .* is no model to start from: .*json"):
        train(load_recipe(task, [f"pretrained={place}", *STILL]), tmp_path / "child")
    assert not (tmp_path / "child").exists()


def test_a_model_is_as_good_as_the_run_it_is_the_best_of(parent, task, tmp_path):
    found, _ = started(task, model_in(parent), tmp_path)
    assert all(torch.equal(found[name], value) for name, value in weights(parent).items())


@pytest.mark.slow
def test_tensors_of_other_shape_or_name_are_initialised_and_reported(parent, task, tmp_path):
    changes = ["model.encoder.num_layers=2", "model.encoder.ffn.d_ff=8", "model.decoder.position=none"]
    found, report = started(task, parent, tmp_path, *changes)
    drawn, _ = train_without(task, tmp_path, *changes)
    wanted = weights(parent)
    for name, value in found.items():
        same = name in wanted and wanted[name].shape == value.shape
        assert torch.equal(value, wanted[name] if same else drawn[name]), name
    skipped = {each.name: (each.shape, each.reason, each.pretrained_shape) for each in report.skipped}
    assert skipped["nodes.encoder.layers.0.branches.ffn.input.weight"] == ((8, 16), "of another shape", (32, 16))
    assert skipped["nodes.encoder.layers.1.norms.ffn.bias"] == ((16,), "not in the pretrained model", None)
    assert {name for name, value in found.items() if name not in wanted or wanted[name].shape != value.shape} == set(skipped)
    assert report.loaded == sum(value.numel() for name, value in found.items() if name not in skipped)


def train_without(task, folder, *changes):
    """The same model with the same tokeniser, as it is drawn."""
    recipe = load_recipe(task, [*STILL, *changes])
    train(recipe, folder / "drawn")
    return weights(folder / "drawn"), recipe


@pytest.mark.slow
def test_a_smaller_model_reports_unused_weights(parent, tmp_path):
    recipe = recipe_for(tmp_path, "classification", "accuracy")
    spec = (HEAD + BODY + MODELS["classification"]).replace("words", "source").replace("body", "encoder")
    (tmp_path / "model.yaml").write_text(f"tfkit: 1\nname: kinds\n{spec}")
    found, report = started(recipe, parent, tmp_path, "tokeniser=null")
    assert {name for name in found if name in weights(parent)} == set(report.names)
    assert all(torch.equal(found[name], weights(parent)[name]) for name in report.names)
    assert {each.name for each in report.skipped if each.initialised} == {"nodes.out.linear.weight", "nodes.out.linear.bias"}
    assert {each.name.split(".")[1] for each in report.skipped if not each.initialised} == {"decoder"}
    again, report = started_again(recipe, tmp_path)
    assert report.skipped == ()
    assert all(torch.equal(again[name], found[name]) for name in found)
    (tmp_path / "text.tsv").write_text((tmp_path / "text.tsv").read_text().replace("animal", "creature"))
    shutil.rmtree(tmp_path / "again" / "child")
    _, report = started_again(recipe, tmp_path)
    assert {(each.name, each.reason) for each in report.skipped} == {
        ("nodes.out.linear.weight", "pretrained for other labels"),
        ("nodes.out.linear.bias", "pretrained for other labels"),
    }


def started_again(recipe, folder):
    (folder / "again").mkdir(exist_ok=True)
    return started(recipe, folder / "child", folder / "again", "tokeniser=null")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["tokeniser=unigram"], r":1:11: TFK117 tokeniser.kind: `unigram` is written, but .* has `bpe`; leave `tok"),
        (["pretrained=nowhere"], r"pretrained=nowhere:1:12: TFK117 pretrained: nowhere is no model to start from"),
        (["model={tmp}/other.yaml"], r"TFK117 pretrained: no weight of .* parts `decoder`, `encoder`, `source` and `given`,"),
        (["model={tmp}/masked.yaml", "tokeniser=null", "data={{kind: masked, text: {tmp}/train.src}}"], r"the token `<mask>`"),
        (["pretrained=''"], "TFK021 pretrained: it is empty"),
    ],
)
def test_an_unusable_pretrained_model_is_reported_with_its_location(parent, task, tmp_path, changes, message):
    names = (("source", "given"), ("target", "wanted"), ("encoder", "reader"), ("decoder", "writer"))
    other = SPEC
    for old, new in names:
        other = other.replace(old, new)
    (tmp_path / "other.yaml").write_text(other)
    (tmp_path / "masked.yaml").write_text(f"tfkit: 1\nname: kinds\n{HEAD}{BODY}{MODELS['masked']}")
    with pytest.raises((InputError, SpecError), match=message):
        train(load_recipe(task, [f"pretrained={parent}", *(each.format(tmp=tmp_path) for each in changes)]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_with_little_in_common_is_refused_before_the_data_are_prepared(parent, task, tmp_path, monkeypatch):
    monkeypatch.setattr("tfkit.train.preparation.prepare", lambda *arguments: pytest.fail("the data were prepared"))
    with pytest.raises(InputError, match=r"TFK117 pretrained: .* and 50 % are required"):
        started(task, parent, tmp_path, "model.defaults.ffn.d_ff=8", "model.defaults.attention.head_dim=4")


@pytest.mark.slow
def test_a_model_with_few_equal_weights_is_refused_unless_the_recipe_allows_it(parent, task, tmp_path):
    """The table of tokens, which has the same shape, does not count."""
    other = ["model.defaults.ffn.d_ff=8", "model.defaults.attention.head_dim=4", "model.defaults.norm=rms_norm"]
    other += ["model.decoder.position=none"]
    with pytest.raises(InputError) as caught:
        started(task, parent, tmp_path, *other)
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.path, diagnostic.location.column) == ("TFK117", "pretrained", 12)
    assert not (tmp_path / "child").exists()
    few = weights(parent)
    drawn, _ = train_without(task, tmp_path, *other)
    inner = {name: value for name, value in drawn.items() if ".embedding." not in name}
    given, total = (
        sum(value.numel() for name, value in inner.items() if some or (name in few and few[name].shape == value.shape))
        for some in (False, True)
    )
    assert 0 < given < total / 10
    assert (
        f"has {given:,} of the {total:,} weights of `small` without token tables ({100 * given / total:.1f} %: "
        in diagnostic.message
    )
    assert diagnostic.fix.endswith("or write `pretrained_share: 0.08`")
    with pytest.raises(InputError, match=r"1:18: TFK117 pretrained_share: .* and 9 % are required"):
        started(task, parent, tmp_path, *other, "pretrained_share=0.09")
    _, report = started(task, parent, tmp_path, *other, "pretrained_share=0.08")
    assert len(report.names) > 1
    resume(tmp_path / "child", overrides=["stopping.max_steps=2"])


def test_a_share_without_pretrained_weights_is_reported(task):
    with pytest.raises(
        SpecError, match=r"pretrained_share=0.5:1:18: TFK117 pretrained_share: it is a share of the weights of `pretrained`"
    ):
        load_recipe(task, ["pretrained_share=0.5"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "written", "has"),
    [
        ("vocab_size", "a vocabulary of 80 ids", "a vocabulary of 90 ids"),
        ("vocab_size", "a vocabulary of 8,000 ids", "a vocabulary of 90 ids"),
        ("lowercase", "`lowercase: true`", "`lowercase: false`"),
        ("normalise", "`normalise: nfkc`", "`normalise: nfc`"),
        ("byte_fallback", "`byte_fallback: true`", "`byte_fallback: false`"),
        ("joint", "a vocabulary for each side", "one vocabulary for both sides"),
    ],
)
def test_a_setting_that_the_tokeniser_does_not_have_is_reported_with_its_location(parent, task, tmp_path, name, written, has):
    values = {"vocab_size": written.split()[3].replace(",", "") if "of" in written else "", "joint": "false"}
    value = values.get(name) or written.strip("`").split()[1]
    expected = rf"TFK117 tokeniser.{name}: {written} is written, but .*, whose tokeniser is used, has {has}; write `{name}: "
    with pytest.raises(InputError, match=rf"--set tokeniser.{name}={value}:1:{len(name) + 12}: {expected}"):
        train(load_recipe(task, [f"pretrained={parent}", f"tokeniser.{name}={value}"]), tmp_path / "run")
    with pytest.raises(InputError, match=expected):  # nor where nothing else is written, in which case the kind is not
        train(load_recipe(task, [f"pretrained={parent}", "tokeniser=null", f"tokeniser.{name}={value}"]), tmp_path / "run")
    line = f"tokeniser: {{kind: bpe, {name}: {value}}}"
    task.write_text("\n".join(line if row.startswith("tokeniser") else row for row in task.read_text().splitlines()))
    with pytest.raises(InputError, match=rf"small-recipe.yaml:5:{len(name) + 26}: {expected}"):
        train(load_recipe(task, [f"pretrained={parent}"]), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings", "changes"),
    [
        ("characters", "lowercase: true", []),
        ("unigram", "normalise: nfkc, vocab_size: 70, byte_fallback: false", []),  # of which the text has fewer to give
        ("bpe", "joint: false, vocab_size: 70, byte_fallback: false", ["model.target={share: null, vocab_size: 50}"]),
    ],
)
def test_the_tokeniser_of_the_model_may_be_written_as_it_was(task, tmp_path, kind, settings, changes):
    """Also without its kind, which the message then does not name; the stored recipe holds only what was written."""
    change = f"tokeniser={{kind: {kind}, {settings}}}"
    train(load_recipe(task, [change, *STILL, *changes]), tmp_path / "run")
    name, value = settings.split(", ")[0].split(": ")
    names = {"kind", *yaml.safe_load(f"{{{settings}}}")}
    for written, known in (([change], names), (["tokeniser=null", f"tokeniser.{name}={value}"], {"kind", name})):
        _, report = started(task, tmp_path / "run", tmp_path, *written, *changes)
        assert report.loaded == report.total
        kept = yaml.safe_load((tmp_path / "child" / "recipe.yaml").read_text())["tokeniser"]
        assert kept.keys() == known
        resume(tmp_path / "child")
        shutil.rmtree(tmp_path / "child")


@pytest.mark.slow
def test_a_recipe_without_a_tokeniser_is_written_without_one_and_trains_again(task, tmp_path):
    train(load_recipe(task, ["tokeniser=characters", *STILL]), tmp_path / "run")
    started(task, tmp_path / "run", tmp_path, "tokeniser=null")
    kept = tmp_path / "child" / "recipe.yaml"
    assert "tokeniser" not in yaml.safe_load(kept.read_text())
    resume(tmp_path / "child")
    train(load_recipe(kept), tmp_path / "again")
    mine, theirs = weights(tmp_path / "again"), weights(tmp_path / "child")
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("given", [7, 14, 28, 55, 57])
def test_the_share_that_a_refusal_names_is_one_that_suffices(given):
    """0.07 * 100 is more than 7 in floating point."""
    assert is_share(given, 100, given / 100)
    assert is_share(100 * given, 10_000, int(100 * given / 100) / 100)
    assert not is_share(given - 1, 100, given / 100)
    assert is_share(0, 0, 1.0)


def test_a_path_is_relative_to_the_recipe(parent, task, tmp_path):
    shutil.copytree(parent, tmp_path / "runs" / "parent")
    task.write_text(task.read_text() + "pretrained: runs/parent\n")
    recipe = load_recipe(task)
    assert recipe.pretrained == str(tmp_path / "runs" / "parent")
    train(load_recipe(task, STILL), tmp_path / "child")
    assert load_recipe(tmp_path / "child" / "recipe.yaml").pretrained == str(tmp_path / "runs" / "parent")


@pytest.fixture
def halves(parent, task, tmp_path):
    """A run that was stopped in its middle, and the same run whole; both began from a copy of the parent."""
    shutil.copytree(parent, tmp_path / "parent")
    change = f"pretrained={tmp_path / 'parent'}"
    train(load_recipe(task, [change]), tmp_path / "whole")
    train(load_recipe(task, [change, "stopping.max_steps=11"]), tmp_path / "half")
    return tmp_path


def ends_alike(folder):
    resume(folder / "half", overrides=["stopping.max_steps=24"])
    mine, theirs = (load_file(folder / run / "checkpoints" / "step-24" / "model.safetensors") for run in ("half", "whole"))
    return all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_a_run_goes_on_exactly_without_the_model_that_it_started_from(halves):
    written = json.loads((halves / "half" / "digests.json").read_text())
    assert len(written["pretrained weights"]) == 64
    shutil.rmtree(halves / "parent")
    assert ends_alike(halves)


@pytest.mark.slow
def test_a_run_without_a_checkpoint_begins_again_from_the_same_weights(halves):
    shutil.rmtree(halves / "half" / "checkpoints")
    assert ends_alike(halves)


@pytest.mark.slow
def test_a_run_without_a_checkpoint_needs_the_weights_that_it_began_with(halves):
    shutil.rmtree(halves / "half" / "checkpoints")
    place = model_in(halves / "parent")
    altered = {name: value + 1 for name, value in load_file(place / "model.safetensors").items()}
    save_file(altered, place / "model.safetensors")
    list_again(place, "model.safetensors")
    with pytest.raises(StoreError, match=r"TFK113 .* was started with another pretrained weights"):
        resume(halves / "half")
    shutil.rmtree(halves / "parent")
    with pytest.raises(InputError, match=r"TFK117 pretrained: .* is no model to start from"):
        resume(halves / "half")


@pytest.mark.slow
def test_the_start_of_a_run_stays(halves, tmp_path):
    with pytest.raises(InputError, match="TFK111 a resumed run keeps its `pretrained`"):
        resume(halves / "half", overrides=[f"pretrained={tmp_path / 'whole'}"])
