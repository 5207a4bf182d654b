"""Who may import whom: this table is the architecture page."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "tfkit"

TORCH_FREE = {"errors", "files", "recipe", "codes", "checks", "contract", "slots", "hooks", "catalogue", "spec", "graph"}
MAY_IMPORT = {
    "errors": set(),
    "codes": set(),
    "checks": set(),
    "contract": set(),
    "slots": {"errors", "files"},
    "hooks": {"slots"},
    "catalogue": {"errors", "files", "slots", "hooks"},
    "spec": {"errors", "files", "codes", "slots", "catalogue"},
    "graph": {"errors", "slots", "catalogue", "spec"},
    "attention": set(),
    "positions": set(),
    "rendering": {"attention", "errors"},
    "nn": {"errors", "slots", "attention", "positions", "rendering"},
    "plugin": {"errors", "slots", "hooks", "guard", "attention", "positions", "rendering", "nn"},
    "builtin": {"plugin"},
    "builder": {"errors", "slots", "catalogue", "spec", "graph", "nn"},
    "store": {"errors", "files", "slots", "catalogue", "spec", "graph", "nn", "builder"},
    "files": {"errors"},
    "recipe": {"errors", "files", "slots", "catalogue", "spec"},
    "data": {"errors", "files", "slots", "nn", "recipe"},
    "generate": {"errors", "slots", "nn", "builder"},
    "text": {"errors", "files", "catalogue", "nn", "store", "recipe", "data", "generate"},
    "score": {"errors", "files"},
    "train": {
        "errors",
        "files",
        "slots",
        "catalogue",
        "spec",
        "nn",
        "builder",
        "store",
        "recipe",
        "data",
        "generate",
        "text",
        "score",
    },
    "guard": {"attention", "errors", "slots"},
    "testing": {
        "checks",
        "errors",
        "files",
        "slots",
        "catalogue",
        "spec",
        "graph",
        "attention",
        "positions",
        "rendering",
        "nn",
        "builder",
    },
    "bench": {"errors", "slots", "catalogue", "attention", "rendering", "nn", "testing"},
    "view": {"errors", "files", "codes", "contract", "slots", "catalogue", "spec", "graph", "nn", "recipe", "train"},
    "cli": {
        "checks",
        "errors",
        "codes",
        "contract",
        "slots",
        "catalogue",
        "spec",
        "graph",
        "nn",
        "builder",
        "store",
        "files",
        "recipe",
        "data",
        "generate",
        "text",
        "score",
        "train",
        "testing",
        "bench",
        "view",
    },
    "__main__": {"cli"},
    "__init__": {
        "builder",
        "catalogue",
        "errors",
        "generate",
        "graph",
        "nn",
        "recipe",
        "score",
        "spec",
        "store",
        "text",
    },
}


WITHIN_TESTING = {
    "finding": set(),
    "raised": set(),
    "profile": set(),
    "zoo": set(),
    "selftest_report": set(),
    "report": {"finding"},
    "limit": {"finding"},
    "search": {"finding", "limit"},
    "attention": {"finding", "raised"},
    "resolve": {"attention"},
    "relations": {"attention", "finding", "raised"},
    "faults": {"attention", "zoo"},
    "suite": {"attention", "faults", "finding", "limit", "profile", "raised", "relations", "report", "resolve", "search"},
    "laws": {"attention", "finding", "profile", "raised", "report", "search", "selftest_report"},
    "models": {"attention"},
    "verification": {"attention", "finding", "raised"},
    "selftest": {"attention", "faults", "laws", "selftest_report", "suite", "verification", "zoo"},
    "process": {"attention", "finding", "laws", "relations", "report", "resolve", "suite"},
    "pytest_plugin": {"process", "profile"},
    "checks": {"laws", "relations", "suite", "verification"},
    "__init__": {"attention", "finding", "laws", "relations", "report", "suite", "verification"},
}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def rooms_imported(path: Path, source: str, inside: tuple[str, ...] = ("tfkit",)) -> set[str]:
    """The rooms of tfkit, or of a package inside it, that a file imports, wherever in the file it does so."""
    depth = len(inside)
    package = ["tfkit", *path.relative_to(ROOT).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            names = [*base, *(node.module.split(".") if node.module else [])]
            if tuple(names[:depth]) == inside:
                found |= {names[depth]} if len(names) > depth else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("tfkit.")}
    return found - {room_of(path)}


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_the_rooms_below_its_own(path):
    assert rooms_imported(path, path.read_text()) <= MAY_IMPORT[room_of(path)]


@pytest.mark.parametrize("path", sorted((ROOT / "testing").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_of_the_conformance_kit_imports_only_the_rooms_below_its_own(path):
    room = path.relative_to(ROOT / "testing").parts[0].removesuffix(".py")
    assert rooms_imported(path, path.read_text(), ("tfkit", "testing")) - {room} <= WITHIN_TESTING[room]


def test_the_check_sees_relative_absolute_and_late_imports():
    path = ROOT / "spec" / "model.py"
    assert rooms_imported(path, "from ..nn.stack import Stack") == {"nn"}
    assert rooms_imported(path, "def f():\n    import tfkit.builder") == {"builder"}
    assert rooms_imported(path, "from tfkit.graph import graph_of\nfrom .load import load_spec") == {"graph"}


@pytest.mark.parametrize(
    "path", [path for path in FILES if room_of(path) in TORCH_FREE], ids=lambda path: str(path.relative_to(ROOT))
)
def test_torch_free_rooms_do_not_name_torch(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").split(".")[0])
    assert "torch" not in names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short_and_their_names_say_something(path):
    assert len(path.read_text().splitlines()) <= 400
    assert path.stem not in {"utils", "helpers", "common", "base", "misc"}
