"""Who may import whom. The table is the picture in ARCHITECTURE.md."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("import order")  # every file is parsed once
ROOT = Path(__file__).parent.parent
CORE = ROOT / "tfkit"

MAY_IMPORT = {
    "errors": "",
    "distribution": "",
    "files": "errors",
    "slots": "errors files",
    "attention": "errors files slots",
    "lazy_names": "",
    "hooks": "slots attention",
    "catalogue": "distribution errors files slots attention hooks",
    "cpu": "errors files slots attention",
    "certificate": "distribution errors files catalogue cpu",
    "spec": "errors files slots attention catalogue",
    "metrics": "errors",
    "recipe": "distribution errors files slots catalogue spec metrics lazy_names",
    "graph": "errors slots attention catalogue spec",
    "nn": "errors slots attention cpu",
    "plugin": "errors slots attention cpu hooks nn lazy_names",
    "builtin": "slots attention cpu nn plugin",
    "builder": "errors slots attention catalogue spec graph nn",
    "io": "errors files slots catalogue spec graph nn builder lazy_names",
    "interop": "distribution errors files slots attention catalogue spec graph nn builtin builder io lazy_names",
    "data": "distribution errors files slots nn recipe lazy_names",
    "generate": "errors slots cpu nn builder",
    "text": "distribution errors files slots catalogue nn io recipe data generate lazy_names",
    "images": "errors catalogue slots nn io data",
    "serve": "errors files io nn data generate text",
    "train": "distribution errors files slots attention cpu catalogue spec graph nn builder io recipe data generate text "
    "metrics lazy_names",
    "comparison": "errors files catalogue recipe spec train",
    "doctor": "distribution errors slots cpu catalogue graph nn view",
    "starters": "errors files slots catalogue hooks plugin",
    "view": "errors files slots attention catalogue certificate spec graph nn recipe train comparison",
    "cli": "distribution errors files slots attention cpu catalogue certificate spec graph nn builder io interop recipe data "
    "generate text images metrics serve train comparison starters doctor view look claims",
    "look": "distribution errors files slots catalogue spec data generate builder io nn view lazy_names",
    "claims": "errors files cpu spec graph builder nn data generate text metrics comparison view",
    "inspection": "slots attention cpu catalogue certificate graph nn builder io lazy_names",
    "commands": "files graph view cli lazy_names",
    "__main__": "cli",
    "__init__": "distribution lazy_names errors cpu catalogue spec graph nn builder io recipe generate text images metrics "
    "comparison",
}
"""Every package of the core, and those that it may import."""

TORCH_FREE = {
    "distribution",
    "errors",
    "files",
    "slots",
    "hooks",
    "catalogue",
    "certificate",
    "spec",
    "metrics",
    "recipe",
    "graph",
}
TORCH_FREE_MODULES = {
    "attention": {"__init__", "auto_table", "backend", "capabilities", "features", "rules", "selection"},
    "cpu": {"__init__", "instruction_set"},
}
"""Modules of packages with torch that the torch-free packages may import."""


def package_of(path: Path) -> str:
    return path.relative_to(CORE).parts[0].removesuffix(".py")


@cache
def modules_imported(path: Path, source: str) -> set[str]:
    """The full names of the modules, or of the names in them, that a file imports, wherever in the file it does so."""
    package = path.relative_to(ROOT).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def packages_imported(path: Path, source: str) -> set[str]:
    """The other packages of the core that a file imports."""
    found = {name.split(".")[1] for name in modules_imported(path, source) if name.startswith("tfkit.")}
    return found - {package_of(path)}


STARTERS = CORE / "starters" / "files"
"""Files that `tfkit new` writes; they are data here."""
FILES = sorted(path for path in CORE.rglob("*.py") if STARTERS not in path.parents)


def imported(path: Path) -> set[str]:
    return modules_imported(path, path.read_text())


def names_torch(path: Path) -> bool:
    return any(name.split(".")[0] == "torch" for name in imported(path))


def test_every_package_imports_only_those_that_the_table_allows():
    wrong = {
        f"{path.relative_to(ROOT)} imports {', '.join(extra)}"
        for path in FILES
        if (extra := packages_imported(path, path.read_text()) - set(MAY_IMPORT[package_of(path)].split()))
    }
    assert not wrong


def test_the_core_imports_no_distribution_that_builds_on_it():
    """Not even for types."""
    distributions = {path.name for path in (ROOT / "plugins").glob("*/tfkit_*") if (path / "__init__.py").exists()}
    assert len(distributions) >= 4
    wrong = {
        (str(path.relative_to(ROOT)), name) for path in FILES for name in imported(path) if name.split(".")[0] in distributions
    }
    assert not wrong


def test_the_table_has_no_cycle():
    order: list[str] = []

    def visit(package: str, path: tuple[str, ...]) -> None:
        assert package not in path, " -> ".join((*path, package))
        if package not in order:
            for other in MAY_IMPORT[package].split():
                visit(other, (*path, package))
            order.append(package)

    for package in MAY_IMPORT:
        visit(package, ())
    assert set(order) == {package_of(path) for path in FILES}


def test_the_check_sees_relative_absolute_and_late_imports():
    path = CORE / "spec" / "model.py"
    assert packages_imported(path, "from ..nn.stack import Stack") == {"nn"}
    assert packages_imported(path, "def f():\n    import tfkit.builder") == {"builder"}
    assert packages_imported(path, "from tfkit.graph import graph_of\nfrom .load import load_spec") == {"graph"}


def test_torch_free_packages_do_not_name_torch():
    named = {path for path in FILES if package_of(path) in TORCH_FREE and names_torch(path)}
    files = [CORE / package / f"{name}.py" for package, names in TORCH_FREE_MODULES.items() for name in names]
    named |= {path for path in files if names_torch(path)}
    assert not named


def test_torch_free_packages_import_only_torch_free_modules():
    wrong = {
        (str(path.relative_to(ROOT)), name)
        for path in FILES
        if package_of(path) in TORCH_FREE
        for name in imported(path)
        for package, modules in TORCH_FREE_MODULES.items()
        if name.startswith(f"tfkit.{package}.") and name.split(".")[2] not in modules
    }
    assert not wrong


def test_no_module_is_part_of_an_import_cycle():
    """Not even one of imports for types."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
    arrows = {
        name: {other for target in imported(path) for other in (target, target.rpartition(".")[0]) if other in names} - {name}
        for name, path in names.items()
    }

    TopologicalSorter(arrows).prepare()  # raises CycleError with the modules of a cycle


def test_files_are_short_and_their_names_say_something():
    long = {str(path.relative_to(ROOT)): n for path in FILES if (n := len(path.read_text().splitlines())) > 600}
    assert not long
    assert not {path.stem for path in FILES} & {"utils", "helpers", "common", "base", "misc"}
