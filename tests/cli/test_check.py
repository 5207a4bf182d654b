"""`tfkit check`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

LOCATED = re.compile(r"^(.+):(\d+):(\d+): (TFK\d{3}) (.+)$")


def diagnostics_in(err):
    lines = err.splitlines()
    assert lines
    found = [LOCATED.match(line) for line in lines]
    assert all(found), err
    return [match.groups() for match in found]


def test_a_good_spec_is_ok_with_its_count(tfkit):
    done = tfkit("check", "specs/transformer-base.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.out == "specs/transformer-base.yaml: OK, transformer-base has 63,082,496 parameters\n"


def test_every_error_of_a_file_is_reported_at_once_with_its_location(tfkit):
    done = tfkit("check", "tests/cli/slips.yaml")
    assert (done.code, done.out) == (2, "")
    diagnostics = diagnostics_in(done.err)
    assert [(line, code) for _, line, _, code, _ in diagnostics] == [
        ("7", "TFK012"),
        ("8", "TFK010"),
        ("10", "TFK021"),
        ("12", "TFK020"),
        ("13", "TFK014"),
        ("14", "TFK018"),
        ("15", "TFK020"),
    ]
    assert "did you mean `num_heads`?" in diagnostics[1][4]
    text = Path("tests/cli/slips.yaml").read_text().splitlines()
    assert text[7][int(diagnostics[1][2]) - 1 :].startswith("nuw_heads")


def test_a_bad_file_does_not_hide_a_good_one(tfkit, small):
    done = tfkit("check", "no-such.yaml", small, "tests/cli/slips.yaml")
    assert done.code == 2
    assert done.out.startswith(f"{small}: OK, small has ")
    assert {file for file, *_ in diagnostics_in(done.err)} == {"no-such.yaml", "tests/cli/slips.yaml"}


def test_a_recipe_is_checked_with_its_model(tfkit, tmp_path):
    """The count is that of the model as the recipe changes it; an error in the model is reported as one of its spec."""
    recipe = "specs/recipes/translate-small.yaml"
    done = tfkit("check", recipe)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{recipe}: OK, translate-small has 2,605,568 parameters\n"
    done = tfkit("check", recipe, "--set", "batching.tokens=0", "--set", "optimiser=lion")
    assert done.code == 2
    assert [(code, text.split(":")[0]) for _, _, _, code, text in diagnostics_in(done.err)] == [
        ("TFK021", "batching.tokens"),
        ("TFK012", "optimiser"),
    ]
    done = tfkit("check", recipe, "--set", "model.encoder.num_layers=0")
    assert (done.code, [code for _, _, _, code, _ in diagnostics_in(done.err)]) == (2, ["TFK021"])
    wrong = tmp_path / "recipe.yaml"
    wrong.write_text("tfkit: 1\nname: mine\nmodel: nowhere.yaml\nstopping: {max_steps: 1}\n")
    done = tfkit("check", str(wrong))
    assert done.code == 2
    assert f"{tmp_path}/nowhere.yaml" in done.err


def test_the_targets_of_adapters_are_checked(tfkit):
    recipe = "specs/recipes/translate-small.yaml"
    done = tfkit("check", recipe, "--set", "lora={rank: 4, targets: [query, ffn.input]}")
    assert (done.code, done.err) == (0, "")
    done = tfkit("check", recipe, "--set", "lora={rank: 500, targets: [qery, value, embedding]}")
    assert (done.code, done.out) == (2, "")
    (_, _, no_target), (_, _, rank) = [line.partition("TFK132 ") for line in done.err.splitlines()][:2]
    assert no_target == "lora.targets: there is no `qery`; did you mean `query`?"
    assert rank.startswith("lora.rank: ")
    assert "whose rank is at most 128, less than 500" in rank


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("vectors={nope: x.txt}", "TFK133 vectors.nope: `nope` is no node of "),
        ('vectors={"²": x.txt}', "TFK133 vectors.²: `²` is no node of "),
        (f'vectors={{"{"9" * 50}": x.txt}}', f"TFK133 vectors.{'9' * 50}: "),
        ("parameters={freeze: ['*', '(']}", "TFK125 parameters.freeze: no parameter of "),
        ("parameters={freeze: ['*']}", "TFK125 parameters.freeze: all parameters are frozen"),
        ("loss.weights={nope: 2.0}", "TFK112 loss.weights.nope: `nope` is no output that is trained"),
        ("data={kind: masked}", "TFK107 data of kind `masked` need one input"),
        ("tokeniser.joint=false", "TFK106 tokeniser.joint: source and target share one table"),
        ("model.target.start_id=5", "TFK106 `target` has start_id 5, the tokenisers of recipes have 1"),
        ("batching.images=3", "TFK108 batching.images: `images` counts images"),
    ],
)
def test_what_a_run_refuses_without_reading_a_file_is_refused(tfkit, change, message):
    done = tfkit("check", "specs/recipes/translate-small.yaml", "--set", change, "--set", "validation.metric=loss")
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_json_is_a_list_with_an_object_per_file(tfkit, small):
    done = tfkit("check", "--json", small, "tests/cli/slips.yaml")
    good, bad = done.json()
    assert done.code == 2
    assert good == {"file": str(small), "ok": True, "name": "small", "parameters": good["parameters"], "diagnostics": []}
    assert good["parameters"] > 0
    assert (bad["ok"], bad["name"], bad["parameters"], len(bad["diagnostics"])) == (False, None, None, 7)
    assert set(bad["diagnostics"][0]) == {"code", "message", "fix", "path", "file", "line", "column"}
    assert (bad["diagnostics"][0]["code"], bad["diagnostics"][0]["line"]) == ("TFK012", 7)


def test_set_changes_the_checked_spec(tfkit, small):
    plain = tfkit("check", "--json", small).json()[0]["parameters"]
    deeper = tfkit("check", "--json", small, "--set", "encoder.num_layers=3").json()[0]["parameters"]
    layer = 4 * (12 * 12 + 12) + (12 * 20 + 20) + (20 * 12 + 12) + 2 * 2 * 12
    assert deeper - plain == layer
    again = tfkit("check", "--json", "--set", "encoder.num_layers=9", small, "--set", "encoder.num_layers=3")
    assert again.json()[0]["parameters"] == deeper, "the last override counts, wherever it stands"


def test_the_expected_count_is_checked(tfkit, small):
    done = tfkit("check", small, "--set", "expect.parameters=5")
    assert done.code == 2
    assert "TFK044" in done.err


def test_rules_of_the_graph_are_checked(tfkit, small):
    done = tfkit("check", small, "--set", "defaults.attention.num_heads=5")
    assert done.code == 2
    assert "d_model 12 is not divisible by num_heads 5" in done.err


def test_a_slip_of_the_pen_in_a_size_is_refused_in_no_time(tfkit, small):
    done = tfkit("check", small, "--set", "encoder.num_layers=1000000000000")
    assert done.code == 2
    assert "TFK045" in done.err


GARBAGE = ["", "=", "foo", "encodr.num_layers=3", "encoder.num_layers=[", "encoder=", "a..b=1", "\0=\0"]
NO_SPECS = [b"", b"\xff\xfe\x00", bytes(range(256)), b"- 1\n", b"a: [\n", b"\t\n", b"a: &b c\n", b"x" * (1 << 20 | 1)]


@pytest.mark.parametrize("override", GARBAGE)
def test_garbage_in_an_override_is_an_error_of_the_override(tfkit, small, override):
    done = tfkit("check", small, "--set", override)
    assert done.code == 2
    assert done.out == ""
    assert "TFK0" in done.err


@pytest.mark.parametrize("content", NO_SPECS)
def test_files_that_are_no_specs(tfkit, tmp_path, content):
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    done = tfkit("check", path)
    assert done.code == 2
    assert diagnostics_in(done.err)[0][0] == str(path)


@pytest.mark.parametrize("path", [".", "no/such/file.yaml", "specs"])
def test_paths_that_are_no_files(tfkit, path):
    done = tfkit("check", path)
    assert (done.code, done.out) == (2, "")
    assert "TFK000" in done.err


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "a path is expected"),
        ("a\0b", "a path is expected"),
        ("x" * 5000, "has 5,000 characters, more than a path may"),
        ("a\udcffb", "the path is not UTF-8 text"),
    ],
)
def test_words_that_are_no_paths(tfkit, path, words):
    done = tfkit("check", path)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("TFK090 argument SPEC: ")
    assert words in done.err


def test_every_shipped_spec_is_ok(tfkit):
    files = sorted(map(str, Path("specs").glob("*.yaml")))
    done = tfkit("check", *files)
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == len(files) > 20


def test_letters_that_move_the_cursor_are_not_printed(tfkit, small):
    small.write_text(small.read_text().replace("name: small", 'name: "a\\e[31mb"'))
    done = tfkit("check", small)
    assert (done.code, "\x1b" in done.out) == (0, False)


def test_a_saved_model_and_standard_input_are_pointed_out(tfkit, small, tmp_path):
    saved = tmp_path / "saved"
    saved.mkdir()
    assert "this is a directory; name a YAML or JSON file" in tfkit("check", saved).err
    (saved / "spec.yaml").write_text(small.read_text())
    assert f"this is a directory; its spec is {saved / 'spec.yaml'}" in tfkit("check", saved).err
    assert "standard input is /dev/stdin" in tfkit("check", "-").err


@pytest.mark.slow
@pytest.mark.parametrize("file", ["specs/transformer-base.yaml", "specs/recipes/translate-small.yaml"])
def test_a_spec_or_a_recipe_may_come_through_a_pipe(file):
    """The pipe is read once. What the file names is there relative to the working directory."""
    text = Path(file).read_text().replace("model: ../", "model: specs/")
    done = subprocess.run(
        [sys.executable, "-m", "tfkit", "check", "/dev/stdin"], input=text, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("/dev/stdin: OK, ")


def test_a_schedule_that_does_not_fit_the_steps_is_a_warning(tfkit):
    recipe, changes = "specs/recipes/translate-small.yaml", ("--set", "stopping.max_steps=5")
    done = tfkit("check", recipe, *changes)
    assert (done.code, done.out) == (0, f"{recipe}: OK, translate-small has 2,605,568 parameters\n")
    assert "TFK131 schedule.warmup_steps: the learning rate rises until step 1,000, and the last step is 5" in done.err
    (result,) = tfkit("check", recipe, *changes, "--json").json()
    assert result["ok"]
    assert [diagnostic["code"] for diagnostic in result["diagnostics"]] == ["TFK131"]
