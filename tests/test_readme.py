"""The README's tables, files and command outputs are what the code says today, and its Python blocks run."""

import re

import pytest

import readme
from tfkit.catalogue import load_catalogue
from tfkit.graph import graph_of
from tfkit.spec import parse_spec


@pytest.fixture(scope="module")
def text():
    return readme.README.read_text(encoding="utf-8")


def test_tables_files_and_outputs_are_up_to_date(text):
    assert readme.written(text) == text, "run `python tests/readme.py`"


def test_the_check_sees_a_stale_table():
    stale = "<!-- generated: codes -->\n| code | what is wrong |\n<!-- end -->"
    assert readme.written(stale) != stale


def test_the_first_commands_are_the_two_that_matter(text):
    commands = re.findall(r"^(make \w+)", text, flags=re.M)
    assert commands[:2] == ["make demo", "make test"]


def test_python_blocks_run(text, monkeypatch, tmp_path):
    blocks = [block for block in re.findall(r"```python\n(.*?)```", text, flags=re.S) if "tfkit.build(" in block]
    assert blocks
    monkeypatch.chdir(readme.ROOT)
    namespace = {"tmp": str(tmp_path)}
    for block in blocks:
        exec(compile(block.replace('"model/"', f'"{tmp_path}/model"'), "README.md", "exec"), namespace)


def test_every_hook_is_documented_with_its_signature(text):
    for hook, kind in readme.hooks.SLOTS.values():
        assert f"def {hook}() -> list[{kind.__name__}]:" in text


def test_the_spec_that_shows_the_language_is_right(text):
    [block] = re.findall(r"```yaml\n(# yaml-language-server[^\n]*\ntfkit: 1\nextends:.*?)```", text, flags=re.S)
    catalogue = load_catalogue()
    spec = parse_spec(block, catalogue, file=str(readme.ROOT / "specs" / "a-variant.yaml"))
    assert graph_of(spec).parameters() > 0
    assert [part.options.name for part in spec.nodes["decoder"].options.layers[0].sublayers] == [
        "ffn",
        "self_attention",
        "to_source",
        "ffn_2",
    ]
