"""Which commands never import torch, and what others leave out, tried in fresh interpreters: that is what start-up costs."""

import json
import subprocess
import sys

import pytest

from command_line import ROOT
from tfkit import load_recipe
from tfkit.train import train
from translation_task import write_task

pytestmark = pytest.mark.slow

PROBE = """
import json, sys
from tfkit.cli import main
seen = {}
for words in json.loads(sys.argv[1]):
    code = main(words)
    seen[" ".join(words)] = [code, sorted(set(json.loads(sys.argv[2])) & set(sys.modules))]
print(json.dumps(seen), file=sys.stderr)
"""


UNUSED = [
    "rich", "sympy", "torch._dynamo", "torch._inductor", "triton", "matplotlib", "pandas", "transformers", "datasets",
    "networkx", "scipy", "sentencepiece", "onnx", "tensorboard", "PIL", "starlette", "uvicorn", "tfkit.train", "tfkit.serve",
    "tfkit.look", "tfkit.interop.export",
]  # fmt: skip
"""What translating does not need."""


def imported_by(*commands, heavy=("torch", "rich"), text=""):
    """By command its exit code and which heavy modules are there after it, all in one interpreter that reads `text`."""
    words = json.dumps([command.split() for command in commands])
    program = [sys.executable, "-c", PROBE, words, json.dumps(heavy)]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=True, input=text)
    return json.loads(done.stderr.splitlines()[-1])


def test_explaining_imports_neither_torch_nor_pydantic_nor_the_catalogue():
    heavy = ("torch", "rich", "pydantic", "numpy", "pluggy", "tfkit.catalogue", "tfkit.spec")
    commands = ("explain TFK001", "explain TFK1", "explain A2", "explain R19", "explain checks", "explain --json", "explain")
    seen = imported_by(*commands, heavy=heavy)
    assert {words: modules for words, (_, modules) in seen.items()} == {words: [] for words in commands}


def test_checking_imports_no_package_of_numbers():
    command = "check specs/transformer-base.yaml"
    assert imported_by(command, heavy=("torch", "numpy", "pyarrow", "tokenizers", *UNUSED)) == {command: [0, []]}


def test_translating_imports_only_what_it_uses(tmp_path):
    train(load_recipe(write_task(tmp_path), ["stopping.max_steps=1"]), tmp_path / "run")
    command = f"translate {tmp_path / 'run'}"
    assert imported_by(command, heavy=("torch", *UNUSED), text="one red dog\n") == {command: [0, ["torch"]]}


def test_commands_that_only_look_import_no_torch():
    spec = "specs/transformer-base.yaml"
    silent = [
        "--help",
        "check --help",
        "--version",
        f"check {spec}",
        "check tests/cli/slips.yaml",
        "plugins --json",
        "schema",
        "schema recipe",
        f"diff {spec} {spec} --json",
    ]
    silent += [f"show {spec} {option}" for option in ("--json", "--mermaid", "--resolved", "--svg", "--html")]
    silent += [f"plan {spec} --device cuda:sm90 --json", "explain", "explain TFK001"]
    silent += ["explain A2", "new norm Bad", "explain checks", "explain R19"]
    drawn = [
        f"show {spec}",
        f"plan {spec}",
        f"diff {spec} specs/transformer-big.yaml",
        "plugins",
        "plugins --backends",
        "build tests/cli/slips.yaml",
        "build nowhere.yaml",
    ]
    seen = imported_by(*silent, *drawn)
    assert {words: modules for words, (_, modules) in seen.items() if words in silent} == {words: [] for words in silent}
    assert {words: modules for words, (_, modules) in seen.items() if words in drawn} == {words: ["rich"] for words in drawn}
    assert {words: code for words, (code, _) in seen.items() if code} == {
        "check tests/cli/slips.yaml": 2, "build tests/cli/slips.yaml": 2, "build nowhere.yaml": 2,
        f"diff {spec} specs/transformer-big.yaml": 1, "new norm Bad": 2,
    }  # fmt: skip


def test_the_probe_can_fail():
    [(code, modules)] = imported_by("build specs/transformer-tiny.yaml --device cuda:99").values()
    assert (code, "torch" in modules) == (2, True)
