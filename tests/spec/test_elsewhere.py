"""An error about a file that a spec or a recipe reaches somewhere else says where and which rule, and quotes nothing of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import tfkit as package
from command_line import Done
from tfkit import TfkitError, load_recipe

SECRET = "hunter2secret"
TEXTS = {
    "words": f"root:x:0:0:{SECRET}:/root\n",
    "one value": f"{SECRET}\n",
    "a key": f"{SECRET}: 1\n",
    "keys": f"tfkit: 1\n{SECRET}: {{password: {SECRET}}}\n",
    "a key twice": f"{SECRET}: 1\n{SECRET}: 2\n",
    "a kind": f"tfkit: 1\nnodes:\n  {SECRET}: {{kind: {SECRET}, input: {SECRET}}}\n",
    "a default": f"tfkit: 1\ndefaults: {{activation: {SECRET}, {SECRET}: 2}}\n",
    "an anchor": f"a: &{SECRET} 1\nb: *{SECRET}\n",
    "a tag": f"a: !{SECRET} 1\n",
    "a number": f"tfkit: 1\ndefaults: {{d_model: {SECRET}}}\n",
    "a long number": "tfkit: 1\ndefaults: {d_model: 98765432109876543210987654321}\n",
    "no colon": f"tfkit: 1\n{SECRET}\nb: 2\n",
    "a colon too many": f"a: b: {SECRET}\n",
    "an escape": f'a: "\\{SECRET}"\n',
    "JSON": json.dumps({SECRET: SECRET}),
    "broken JSON": f'{{"{SECRET}": {SECRET}',
}
OWN = "tfkit: 1\nname: mine\nnodes: {}\n"


def quotes(text: str) -> bool:
    return any(part in text for part in (SECRET, "root:", "password", "98765", "hunter"))


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A folder with a spec, and another folder beside it."""
    (tmp_path / "mine" / "below").mkdir(parents=True)
    (tmp_path / "theirs").mkdir()
    return tmp_path / "mine", tmp_path / "theirs"


@pytest.mark.parametrize("suffix", ["yaml", "json", "txt"])
@pytest.mark.parametrize("what", TEXTS)
@pytest.mark.parametrize("how", ["a path", "an absolute path", "a link", "a chain"])
def test_the_text_of_an_extended_file_elsewhere_is_not_quoted(
    how: str, what: str, suffix: str, places: tuple[Path, Path], catalogue: package.Catalogue
) -> None:
    mine, theirs = places
    target = theirs / f"file.{suffix}"
    target.write_text(TEXTS[what])
    name = {"a path": f"../theirs/file.{suffix}", "an absolute path": str(target), "a link": f"link.{suffix}"}.get(how)
    if how == "a link":
        (mine / f"link.{suffix}").symlink_to(target)
    if how == "a chain":
        (theirs / "between.yaml").write_text(f"tfkit: 1\nextends: file.{suffix}\nname: between\n")
        name = "../theirs/between.yaml"
    (mine / "spec.yaml").write_text(f"{OWN}extends: {name}\n")
    path = mine / "spec.yaml"
    loads: list[Callable[[], object]] = [
        lambda: package.load_spec(path, catalogue),
        lambda: package.parse_spec(path.read_text(), catalogue, file=str(path)),
        lambda: load_recipe(path),
    ]
    for load in loads:
        with pytest.raises(TfkitError) as caught:
            load()
        found = [each for each in caught.value.diagnostics if not str(each.location).startswith(str(mine / "spec.yaml"))]
        assert found or load is loads[-1]  # a recipe has errors of its own first
        assert not quotes(str(caught.value)), str(caught.value)
        assert all("its text is not shown, because it lies elsewhere than" in each.fix for each in found)
        assert all("tfkit check" in each.fix for each in found)


@pytest.mark.parametrize("place", ["base.yaml", "below/base.yaml"])
def test_the_text_of_an_extended_file_beside_the_spec_is_quoted(
    place: str, places: tuple[Path, Path], catalogue: package.Catalogue
) -> None:
    mine, _ = places
    (mine / place).write_text(TEXTS["keys"])
    (mine / "spec.yaml").write_text(f"{OWN}extends: {place}\n")
    with pytest.raises(TfkitError, match=SECRET):
        package.load_spec(mine / "spec.yaml", catalogue)


def test_names_of_files_and_of_nodes_elsewhere_are_not_suggested(
    places: tuple[Path, Path], catalogue: package.Catalogue
) -> None:
    mine, theirs = places
    (theirs / f"{SECRET}.yaml").write_text(f"tfkit: 1\nname: x\nnodes: {{{SECRET}: {{kind: tokens, vocab_size: 9}}}}\n")
    (mine / "spec.yaml").write_text(f"{OWN}extends: ../theirs/{SECRET[:-2]}.yaml\n")
    with pytest.raises(TfkitError, match="does not exist") as caught:
        package.load_spec(mine / "spec.yaml", catalogue)
    assert f"{SECRET}.yaml" not in str(caught.value)
    (mine / "spec.yaml").write_text(f"tfkit: 1\nname: a\nextends: ../theirs/{SECRET}.yaml\nnodes: {{{SECRET[:-2]}: null}}\n")
    with pytest.raises(TfkitError, match="to remove") as caught:
        package.load_spec(mine / "spec.yaml", catalogue)
    assert f"`{SECRET}`" not in str(caught.value)


def test_a_key_below_a_value_elsewhere_does_not_show_the_value(
    places: tuple[Path, Path], catalogue: package.Catalogue, tfkit: Callable[..., Done]
) -> None:
    """Neither by `changes` nor by an override; beside the spec the value is shown."""
    mine, theirs = places
    for folder in (mine, theirs):
        (folder / "base.yaml").write_text(f"tfkit: 1\nname: {SECRET}\ndefaults: {{dropout: {SECRET}}}\n")
    for name, shown in (("../theirs/base.yaml", False), ("base.yaml", True)):
        (mine / "spec.yaml").write_text(f"{OWN}extends: {name}\n")
        with pytest.raises(TfkitError) as caught:
            package.load_spec(mine / "spec.yaml", catalogue, ["defaults.dropout.x=1"])
        [error] = [each for each in caught.value.diagnostics if each.code == "TFK017"]
        assert quotes(error.message) == shown, error.message
    (mine / "recipe.yaml").write_text(RECIPE.format("../theirs/base.yaml\nchanges: [name.z=1]"))
    done = tfkit("check", str(mine / "recipe.yaml"))
    assert "TFK017 name.z: `name` has no keys;" in done.err.replace("\n", ";")
    assert not quotes(done.err), done.err


RECIPE = "tfkit: 1\nname: r\nmodel: {}\ndata: {{kind: parallel}}\nstopping: {{max_steps: 1}}\n"


@pytest.mark.parametrize("what", TEXTS)
def test_the_text_of_a_model_that_a_recipe_names_elsewhere_is_not_quoted(
    what: str,
    places: tuple[Path, Path],
    tfkit: Callable[..., Done],
) -> None:
    mine, theirs = places
    (theirs / "model.yaml").write_text(TEXTS[what])
    (mine / "recipe.yaml").write_text(RECIPE.format("../theirs/model.yaml"))
    done = tfkit("check", str(mine / "recipe.yaml"))
    assert done.code == 2
    assert "theirs/model.yaml" in done.err
    assert not quotes(done.out + done.err), done.err
