"""What distributions import: only public modules of tfkit, and their own modules in one order, without a cycle."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[2]
CORE = ("tfkit", "tfkit.plugin")
PUBLIC = {
    "tfkit_conformance": (
        *CORE,
        "tfkit.plugin.model_parts",
        "tfkit.inspection",
        "tfkit.commands",
        "tfkit.lazy_names.lazy_names",
    ),
    "tfkit_fused": CORE,
    "tfkit_flash_attn": (*CORE, "tfkit.plugin.flash_calls"),
    "tfkit_example_backend": CORE,
}
"""By package, the modules of tfkit that it may import."""

ORDER = {
    "check_texts": "",
    "finding": "",
    "machine_code": "",
    "profile": "",
    "raised": "",
    "site_hooks": "",
    "snippets": "",
    "source": "",
    "differences": "finding",
    "limit": "finding",
    "report": "finding",
    "law_evaluation": "finding report",
    "search": "finding limit",
    "attention": "finding differences raised source",
    "resolve": "attention",
    "mutants": "attention",
    "relations": "finding differences raised attention",
    "reference": "",
    "laws": "finding differences raised attention reference report resolve snippets",
    "suite": "finding differences profile raised source attention limit report mutants relations resolve search snippets",
    "callables": "finding limit raised attention report resolve snippets suite",
    "caches": "finding differences limit profile raised source attention report resolve callables",
    "products": "finding law_evaluation profile report resolve",
    "beams": "finding law_evaluation profile report resolve",
    "verification": "finding differences raised site_hooks source attention reference resolve",
    "bench": "attention raised",
    "process": "finding attention report relations resolve laws suite snippets callables caches",
    "view": "process",
    "commands": "machine_code profile report resolve callables verification bench process view",
    "pytest_plugin": "profile process",
    "write_check_texts": "check_texts relations laws suite verification",
    "__init__": "finding attention report relations laws suite callables caches products beams verification",
}
"""Every package and module of `tfkit_conformance`, and those that it may import."""


def files_of(package: str) -> dict[str, Path]:
    """The files of a package by module name."""
    root = PLUGINS / package.replace("_", "-")
    names = {file: file.relative_to(root).with_suffix("").parts for file in sorted((root / package).rglob("*.py"))}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): file for file, parts in names.items()}


def imports(module: str, file: Path) -> set[tuple[str, str]]:
    """(module, name) of every import in a file, wherever it stands, also those for types."""
    package = module.split(".") if file.stem == "__init__" else module.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *(node.module.split(".") if node.module else [])])
            found |= {(target, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
    return found


def modules_imported(package: str) -> dict[str, set[str]]:
    """By module of a package, the other modules of it that it imports."""
    files = files_of(package)
    return {
        module: {
            f"{target}.{name}" if f"{target}.{name}" in files else target
            for target, name in imports(module, file)
            if target.split(".")[0] == package
        }
        - {module}
        for module, file in files.items()
    }


@pytest.mark.parametrize("package", PUBLIC)
def test_only_public_names_of_tfkit_are_imported(package):
    wrong = set()
    for module, file in files_of(package).items():
        for target, name in imports(module, file):
            if target.split(".")[0] != "tfkit":
                continue
            public = target in PUBLIC[package] and (not name or name in import_module(target).__all__)
            if not public and f"{target}.{name}" not in PUBLIC[package]:
                wrong.add(f"{module} imports {name} of {target}")
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("package", PUBLIC)
def test_no_module_is_part_of_an_import_cycle(package):
    arrows = modules_imported(package)

    def reached_from(start: str) -> set[str]:
        found, waiting = set(), list(arrows[start])
        while waiting:
            if (module := waiting.pop()) not in found:
                found.add(module)
                waiting += arrows[module]
        return found

    assert not {module for module in arrows if module in reached_from(module)}


@pytest.mark.slow
def test_every_package_imports_only_those_before_it():
    def part_of(module: str) -> str:
        return module.split(".")[1] if "." in module else "__init__"

    found = {part: set() for part in ORDER}
    for module, targets in modules_imported("tfkit_conformance").items():
        found[part_of(module)] |= {part_of(target) for target in targets} - {part_of(module)}
    before = []
    for part, allowed in ORDER.items():
        assert found[part] <= set(allowed.split()), part
        assert set(allowed.split()) <= set(before), part
        before.append(part)


def test_imports_are_found_inside_functions(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("import tfkit.nn\nfrom ..a import b\ndef f():\n    from . import c\n")
    assert imports("package.inner.module", file) == {("tfkit.nn", ""), ("package.a", "b"), ("package.inner", "c")}
