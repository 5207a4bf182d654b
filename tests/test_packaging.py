"""What `pip install` makes of this distribution: its extras and what an index shows of it."""

import os
import re
import subprocess
from importlib.metadata import metadata
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib")  # Python 3.11 and newer

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
GROUPS = PYPROJECT["dependency-groups"]


def names(requirements):
    return {re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def test_all_is_everything_that_commands_need():
    assert EXTRAS["all"] == ["tfkit-core[conformance,images,pictures,serve,split,train]"]
    assert {"tfkit-conformance", "tokenizers", "sacrebleu"} <= names(EXTRAS["conformance"]) | names(EXTRAS["train"])
    assert {"train", "conformance", "all"} <= EXTRAS.keys()


def test_every_requirement_has_the_version_that_is_tested():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    fixed = names(line for line in lines if line and not line.startswith("#"))
    optional = [each for found in (EXTRAS, GROUPS) for requirements in found.values() for each in requirements]
    assert names([*PROJECT["dependencies"], *optional]) - {"tfkit-core", "tfkit-conformance", "tfkit-simd"} <= fixed


def test_development_dependencies_are_no_extra():
    assert " ".join(sorted(EXTRAS)) == "all conformance ctranslate2 images lora onnx pictures serve simd split train"
    assert set(GROUPS) == {"bench", "checkpoints", "docs", "hub", "lint", "test"}


def test_classifiers_agree_with_the_project_metadata():
    classifiers = PROJECT["classifiers"]
    assert len(set(classifiers)) == len(classifiers)
    least = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {least}" in classifiers
    assert "Typing :: Typed" in classifiers
    assert (ROOT / "tfkit" / "py.typed").exists()
    assert not any(each.startswith("License ::") for each in classifiers)  # the license is an expression, PEP 639
    assert len(PROJECT["keywords"]) >= 5


def test_the_installed_distribution_is_this_project():
    installed = metadata("tfkit-core")
    assert installed["Name"] == PROJECT["name"]
    assert installed["Version"] == PROJECT["version"]
    assert installed["Requires-Python"] == PROJECT["requires-python"]


def test_the_same_versions_are_named_everywhere():
    """ruff in the pre-commit configuration is the one of `make lint`; the citation names this version of tfkit."""
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    [ruff] = [each.removeprefix("ruff==") for each in GROUPS["lint"] if each.startswith("ruff==")]
    assert re.search(r"ruff-pre-commit\n +rev: v(\S+)", hooks)[1] == ruff
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (\S+)", citation, flags=re.M)[1] == PROJECT["version"]


def make(*words):
    """A dry run of `make`, which knows nothing of a `make` that runs these tests."""
    environment = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    command = ["make", "--dry-run", "--always-make", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


def test_make_demo_says_what_it_downloads_and_how_the_command_is_reached():
    lines = make("demo", "TORCH=cpu").stdout.splitlines()
    assert any("PyTorch 2.13.0 for cpu (200 MB)" in line for line in lines)
    assert sum("source .venv/bin/activate" in line for line in lines[-3:]) == 1
    assert [
        line
        for line in lines
        if "pip install" in line and "--quiet" in line and "setuptools" not in line and "pip>" not in line
    ] == []


def test_make_has_a_choice_of_the_build_of_pytorch():
    [version] = re.findall(r"(?m)^torch==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    cpu, cuda = make("torch-cpu").stdout, make("torch-cuda").stdout
    assert re.findall(r"torch==(\S+)", cpu)[:2] == [f"{version}+cpu"] * 2
    assert cpu.rstrip().endswith("--constraint constraints.txt torch")  # if neither place has that build
    assert cuda.split() == [".venv/bin/pip", "install", "--constraint", "constraints.txt", "torch"]
    for path in ("README.md", "docs/quickstart.md", "docs/ko/quickstart.md"):
        assert f"pip install torch=={version}+cpu --extra-index-url" in (ROOT / path).read_text(encoding="utf-8")
    wrong = make("demo", "TORCH=gpu")
    assert (wrong.returncode, "TORCH=gpu: write TORCH=cpu or TORCH=cuda" in wrong.stderr) == (2, True)
