"""Where a model runs and what computes its attention: the same options and the same refusals, command by command."""

import json

import pytest

from tfkit import Classifier, Diagnostic, InputError, TextGenerator, Translator
from translation_task import write_task

TABLE = {
    "tfkit_auto": 1, "device": "cpu", "device_name": "A machine", "capability": None, "threads": 2, "versions": {},
    "command": "tfkit bench auto", "rows": {
        name: [{"dtypes": ["float32"], "lengths": [1, None], "relative_time": time}]
        for name, time in (("eager", 0.1), ("sdpa", 7.0), ("flex", 5.0))
    },
}  # fmt: skip
COMMANDS = {
    "build": ["build", "{spec}"],
    "verify": ["verify", "{spec}"],
    "train": ["train", "{recipe}", "-o", "{folder}/new"],
    "resume": ["train", "--resume", "{folder}"],
    "translate": ["translate", "{folder}"],
    "generate": ["generate", "{folder}"],
    "classify": ["classify", "{folder}"],
}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "auto.json"
    path.write_text(json.dumps(TABLE))
    return path


@pytest.fixture
def written(tmp_path, small):
    """The words of a command over files that are there."""
    recipe = write_task(tmp_path)
    return lambda name: [word.format(spec=small, recipe=recipe, folder=tmp_path) for word in COMMANDS[name]]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_invalid_or_unused_auto_table_is_reported(tfkit, written, table, name):
    done = tfkit(*written(name), "--auto-table", "nowhere.json")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("TFK062 nowhere.json cannot be read: ")
    done = tfkit(*written(name), "--auto-table", table, "--backend", "sdpa,eager")
    message = "TFK090 --auto-table is for `auto`, and --backend names sdpa,eager; leave one of them out\n"
    assert (done.code, done.out, done.err) == (2, "", message)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("build", "verify")])
def test_a_missing_device_is_reported(tfkit, written, name):
    done = tfkit(*written(name), "--device", "cuda:99")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("TFK046 there is no device cuda:99 here")


@pytest.mark.parametrize(("name", "kind"), [("translate", Translator), ("generate", TextGenerator), ("classify", Classifier)])
def test_text_classes_load_models_with_tokenisers(tfkit, written, table, monkeypatch, name, kind):
    seen = {}

    def load(cls, *given, **named):
        seen.update(named)
        raise InputError(Diagnostic("TFK073", "enough"))

    monkeypatch.setattr(kind, "load", classmethod(load))
    assert tfkit(*written(name), "--auto-table", table, "--backend", "auto").code == 2
    assert [row.relative_time for row in seen["catalogue"].find("backend", "flex").auto] == [5.0]
    assert (seen["device"], seen["backend"]) == ("cpu", ["auto"])


@pytest.mark.parametrize(("name", "kind"), [("translate", Translator), ("generate", TextGenerator)])
def test_commands_that_decode_take_a_precision(tfkit, written, monkeypatch, name, kind):
    seen = []

    def load(cls, *given, **named):
        seen.append(named["precision"])
        raise InputError(Diagnostic("TFK073", "enough"))

    monkeypatch.setattr(kind, "load", classmethod(load))
    assert tfkit(*written(name)).code == 2
    assert tfkit(*written(name), "--precision", "int8").code == 2
    assert seen == ["float32", "int8"]
    done = tfkit(*written(name), "--precision", "int9")
    assert (done.code, done.out, seen) == (2, "", ["float32", "int8"])
    assert "unknown precision `int9`; did you mean `int8`?" in done.err


def test_a_run_uses_the_auto_table(tfkit, written, table, tmp_path):
    done = tfkit(*written("train"), "--auto-table", table, "--set", "stopping.max_steps=1")
    assert done.code == 0
    (plan,) = (tmp_path / "new" / "models").glob("step-1/plan.json")
    assert {row["chosen"] for row in json.loads(plan.read_text())["table"]} == {"eager"}


ONE_SITE = """
tfkit: 1
name: one-site
nodes:
  tokens: {kind: tokens, vocab_size: 11, d_model: 12}
  body:
    {kind: stack, input: tokens, num_layers: 1, causal: true, placement: pre, norm: layer_norm, attention: {num_heads: 2},
     ffn: {d_ff: 20, activation: relu}}
  logits: {kind: token_logits, input: body, share: tokens}
outputs: [logits]
"""


@pytest.mark.exhaustive
def test_backends_with_figures_in_the_table_are_evaluated(tfkit, table, tmp_path):
    (tmp_path / "one-site.yaml").write_text(ONE_SITE)
    words = ["verify", tmp_path / "one-site.yaml", "--lengths", "tokens=4", "--batch", "1", "--json"]
    known, more = ({row["backend"] for row in tfkit(*words, *given).json()["rows"]} for given in ([], ["--auto-table", table]))
    assert more - known == {"flex"}
