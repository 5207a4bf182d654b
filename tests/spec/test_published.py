"""Specs and recipes that tfkit ships, by name: wherever a file may be named, and never in place of a file."""

import os
from pathlib import Path

import pytest

import tfkit as package
from command_line import ROOT
from tfkit import SpecError
from tfkit.spec import to_yaml
from tfkit.spec.published import PLACE, copies, published

NAMES = {kind: sorted(path.stem for path in (ROOT / folder).glob("*.yaml")) for kind, folder in
         (("spec", "specs"), ("recipe", "specs/recipes"))}  # fmt: skip


@pytest.fixture
def here(tmp_path, tfkit, monkeypatch):
    """Commands in a directory without a checkout."""
    tfkit("specs")  # it goes to the root
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", NAMES)
def test_the_files_are_those_of_the_repository(kind):
    assert list(published(kind)) == NAMES[kind]
    assert PLACE.resolve() == ROOT / "specs"


@pytest.mark.parametrize("kind", NAMES)
def test_a_copy_says_the_same_as_what_it_is_copied_from(kind, tmp_path):
    """Every shipped file, written elsewhere: names take the place of relative paths."""
    read = package.load_spec if kind == "spec" else package.load_recipe
    for name in NAMES[kind]:
        for path, content in copies(kind, name).items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(content)
        copy, shipped = read(tmp_path / f"{name}.yaml"), read(name)
        if kind == "spec":
            assert to_yaml(copy) == to_yaml(shipped)
        else:
            assert Path(copy.model).samefile(shipped.model)
            assert {**copy.model_dump(), "model": "", "data": ""} == {**shipped.model_dump(), "model": "", "data": ""}


def test_a_name_stands_for_a_spec_wherever_one_is_named(here, tfkit, monkeypatch):
    Path("base.yaml").write_text("tfkit: 1\nname: base\nextends: transformer-tiny\nnodes: {encoder: {num_layers: 1}}\n")
    Path("train.yaml").write_text("tfkit: 1\nname: t\nextends: sample\nmodel: rnnsearch-small\nchanges: []\n")
    monkeypatch.setattr("command_line.ROOT", here)
    assert package.build("transformer-tiny", device="meta").plan.name == "transformer-tiny"
    assert package.load_recipe("train.yaml").model == published("spec")["rnnsearch-small"]
    assert package.load_recipe("sample", ["model=base.yaml"]).model == "base.yaml"
    main = package.cli.main
    assert main(["check", "transformer-base", "sample", "base.yaml", "train.yaml", "--set", "name=x"]) == 0
    for words in (
        ["show", "gpt2"],
        ["plan", "gpt2"],
        ["diff", "gpt2", "gpt2"],
        ["eject", "tiny-glu", "-o", "m.py"],
        ["build", "tiny-glu"],
    ):
        assert main(words) == 0, words


def test_a_file_of_the_name_wins_and_a_directory_of_it_does_not(here):
    Path("sample").mkdir()
    Path("gpt2").write_text("tfkit: 1\nname: mine\nextends: tiny-glu\n")
    assert package.load_spec("gpt2").name == "mine"
    assert package.load_recipe("sample").name == "sample"
    Path("mine.yaml").write_text("tfkit: 1\nextends: sample\nname: mine\n")
    assert package.load_recipe("mine.yaml").name == "mine"
    for path in ("./transformer-base", "transformer-base.yaml", "specs/transformer-base"):
        with pytest.raises(SpecError, match="the file cannot be read"):
            package.load_spec(path)
    Path("transformer-tiny").write_text("tfkit: 1\nname: mine\nextends: transformer-tiny\n")
    with pytest.raises(SpecError, match="a spec extends itself"):
        package.load_spec("transformer-tiny")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("transformer-bse", "did you mean `transformer-base`? `tfkit specs` lists"),
        ("zzz", "; `tfkit specs` lists"),
        ("sample", "; `sample` is a recipe; `tfkit specs` lists"),
        ("elsewhere/gpt2.yaml", "; the one that comes with tfkit has the name `gpt2`"),
        ("../transformer-bse", "no such file or directory"),
        ("a\nb", "no such file or directory"),
    ],
)
def test_an_unknown_name_comes_with_near_ones(here, text, fix):
    with pytest.raises(SpecError) as error:
        package.load_spec(text)
    assert fix in str(error.value)
    assert ("`tfkit specs`" in fix) == ("`tfkit specs`" in str(error.value))


def test_the_list_has_one_line_for_each(tfkit):
    lines = tfkit("specs").out.splitlines()
    data = tfkit("specs", "--json").json()
    assert len(lines) == len(NAMES["spec"]) + 2 + len(NAMES["recipe"])
    assert [row["name"] for row in data["specs"]] == NAMES["spec"]
    assert [row["name"] for row in data["recipes"]] == NAMES["recipe"]
    [base] = [line.split() for line in lines if line.startswith("transformer-base ")]
    assert base[:4] == ["transformer-base", "63,082,496", "The", "base"]


def test_a_recipe_is_copied_with_all_its_files_or_not_at_all(here, tfkit):
    Path("elsewhere").mkdir()
    Path("sample").symlink_to("elsewhere")
    assert "sample is a link" in tfkit("new", "recipe", "sample", "-o", "mine.yaml").err
    Path("sample").unlink()
    Path("sample").write_text("a file")
    assert tfkit("new", "recipe", "sample", "-o", "mine.yaml").code == 2
    assert sorted(os.listdir()) == ["elsewhere", "sample"]
    assert os.listdir("elsewhere") == []


def test_new_copies_a_spec_or_a_recipe_with_its_data(here, tfkit, monkeypatch, capsys):
    main = package.cli.main
    assert main(["new", "recipe", "sample", "-o", "mine.yaml"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "mine.yaml", "sample/train.de", "sample/train.en", "", "Next:", "  tfkit check mine.yaml",
    ]  # fmt: skip
    assert set(copies("recipe", "both-ways")) == {"both-ways.yaml", "sample/train.de", "sample/train.en"}
    assert set(copies("recipe", "sample-ko")) == {"sample-ko.yaml", "sample/train.ko", "sample/train.en"}
    assert main(["new", "spec", "gpt2"]) == 0
    assert main(["check", "mine.yaml", "gpt2.yaml"]) == 0
    before = Path("gpt2.yaml").read_text()
    assert main(["new", "spec", "gpt2"]) == 2
    Path("folder").mkdir()
    assert main(["new", "spec", "gpt2", "-o", "folder/"]) == 0
    assert Path("folder/gpt2.yaml").read_text() == Path("gpt2.yaml").read_text()
    assert Path("gpt2.yaml").read_text() == before
    assert main(["new", "recipe", "sampel"]) == 2
    assert "there is no recipe `sampel`; did you mean `sample`?" in capsys.readouterr().err
