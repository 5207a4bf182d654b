"""Who may import whom: this table is the architecture page."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "tfkit"

TORCH_FREE = {"errors", "codes", "slots", "hooks", "catalogue", "spec", "graph"}
MAY_IMPORT = {
    "errors": set(),
    "codes": set(),
    "slots": {"errors"},
    "hooks": {"slots"},
    "catalogue": {"errors", "slots", "hooks"},
    "spec": {"errors", "codes", "slots", "catalogue"},
    "graph": {"errors", "slots", "catalogue", "spec"},
    "attention": set(),
    "positions": set(),
    "rendering": {"attention", "errors"},
    "nn": {"errors", "slots", "attention", "positions", "rendering"},
    "plugin": {"errors", "slots", "hooks", "guard", "attention", "positions", "rendering", "nn"},
    "builtin": {"plugin"},
    "builder": {"errors", "slots", "catalogue", "spec", "graph", "nn"},
    "store": {"errors", "slots", "catalogue", "spec", "graph", "nn", "builder"},
    "generate": {"errors", "slots", "nn", "builder"},
    "guard": {"attention", "errors", "slots"},
    "testing": {
        "errors",
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
    "view": {"errors", "codes", "slots", "catalogue", "spec", "graph", "nn"},
    "cli": {"errors", "codes", "slots", "catalogue", "spec", "graph", "nn", "builder", "store", "generate", "testing", "view"},
    "__main__": {"cli"},
    "__init__": {"builder", "catalogue", "errors", "generate", "graph", "nn", "spec", "store"},
}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def rooms_imported(path: Path, source: str) -> set[str]:
    """The rooms of tfkit that a file imports, wherever in the file it does so."""
    package = ["tfkit", *path.relative_to(ROOT).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            names = [*base, *(node.module.split(".") if node.module else [])]
            if names[:1] == ["tfkit"]:
                found |= {names[1]} if len(names) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("tfkit.")}
    return found - {room_of(path)}


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_the_rooms_below_its_own(path):
    assert rooms_imported(path, path.read_text()) <= MAY_IMPORT[room_of(path)]


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
