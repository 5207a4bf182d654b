"""The names that users and plugin authors import."""

import ast
import importlib
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tfkit
import tfkit.plugin

ROOT = Path(__file__).parents[1]
SMALL = {
    "tfkit": 1,
    "name": "small",
    "defaults": {"d_model": 8, "placement": "pre", "norm": "layer_norm", "attention": {"num_heads": 2}},
    "nodes": {
        "tokens": {"kind": "tokens", "vocab_size": 9},
        "body": {"kind": "stack", "input": "tokens", "num_layers": 1, "ffn": {"d_ff": 8, "activation": "relu"}},
    },
    "outputs": ["body"],
}


def test_every_public_name_exists_and_the_list_is_sorted():
    assert list(tfkit.__all__) == sorted(tfkit.__all__)
    for name in tfkit.__all__:
        assert getattr(tfkit, name) is not None


def test_build_stays_a_function_after_everything_was_imported():
    import tfkit.builder
    import tfkit.io

    assert callable(tfkit.build)
    assert tfkit.build is tfkit.builder.build
    assert tfkit.load is tfkit.io.load


LAZY = ["tfkit.plugin", "tfkit.plugin.flash_calls", "tfkit.plugin.model_parts", "tfkit.inspection", "tfkit.commands"]
"""The modules of names for distributions; `tfkit` itself is tested above."""


@pytest.mark.parametrize("module", LAZY)
def test_every_name_for_distributions_exists_and_the_list_is_sorted(module):
    public = importlib.import_module(module)
    assert list(public.__all__) == sorted(set(public.__all__))
    for name in public.__all__:
        assert getattr(public, name) is not None


@pytest.mark.slow
@pytest.mark.parametrize("module", ["tfkit", *LAZY])
def test_importing_public_modules_imports_no_torch(module):
    code = f"import sys, {module}; print('torch' in sys.modules, 'rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert tfkit.__version__ == version("tfkit-core")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["tfkit", *LAZY, "tfkit_conformance"])
def test_names_that_are_imported_late_complete_with_tab(module):
    code = f"import {module} as m; print(set(m.__all__) <= set(dir(m)), sorted(dir(m)) == dir(m))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
    assert "__version__" in dir(tfkit)
    assert set(importlib.import_module(module).__all__) <= set(dir(importlib.import_module(module)))


@pytest.mark.parametrize("module", ["tfkit", *LAZY, "tfkit_conformance"])
def test_tab_completion_shows_public_names_alone(module):
    public = {name for name in dir(importlib.import_module(module)) if not name.startswith("__")}
    assert public == set(importlib.import_module(module).__all__) - {"__version__"}


@pytest.mark.slow
def test_the_conformance_kit_is_imported_by_its_first_use_alone():
    code = "import sys, tfkit; dir(tfkit); tfkit.build; print([m for m in sys.modules if m.startswith('tfkit_conformance')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_verify_gives_its_verdict_as_a_value_and_as_text():
    report = tfkit.verify(SMALL, lengths={"tokens": 5}, batch=2, parts=["sub-layers"])
    assert (report.ok, report.verdict, report.exit_code) == (True, "VERIFIED", 0)
    assert str(report).startswith("VERIFIED: small, ")
    assert "\n" not in str(report)
    missing = tfkit.verify(SMALL, lengths={"tokens": 5}, batch=2, devices=["cuda:99"])
    assert (missing.ok, missing.exit_code) == (False, 3)
    assert str(missing).startswith("INCOMPLETE: small, 1 not run\nnot run: everything at small cuda:99: ")


def test_tests_take_public_names_from_public_modules():
    doors = (
        "tfkit",
        "tfkit.plugin",
        "tfkit.inspection",
        "tfkit.commands",
        "tfkit.plugin.model_parts",
        "tfkit.plugin.flash_calls",
    )
    public = {(name, id(getattr(door, name))): door.__name__ for door in map(import_module, doors) for name in door.__all__}
    files = [file for place in ("tests", "plugins") for file in (ROOT / place).rglob("*.py") if "tests" in file.parts]
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {name.name} is in {public[key]}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tfkit.") and node.module not in doors
        for name in node.names
        if (key := (name.name, id(getattr(import_module(node.module), name.name, None)))) in public
    ]
    assert found == []
