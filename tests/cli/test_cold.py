"""Which commands never import torch, tried in fresh interpreters."""

import json
import subprocess
import sys

import pytest

from command_line import ROOT

pytestmark = pytest.mark.slow

PROBE = """
import json, sys
from tfkit.cli import main
seen = {}
for words in json.loads(sys.argv[1]):
    code = main(words)
    seen[" ".join(words)] = [code, sorted({"torch", "rich"} & set(sys.modules))]
print(json.dumps(seen), file=sys.stderr)
"""


def imported_by(*commands):
    """By command its exit code and which heavy modules are there after it, all in one interpreter."""
    words = json.dumps([command.split() for command in commands])
    done = subprocess.run([sys.executable, "-c", PROBE, words], capture_output=True, text=True, cwd=ROOT, check=True)
    return json.loads(done.stderr.splitlines()[-1])


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
