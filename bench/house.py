"""How much of tfkit a reader meets: modules and lines that a forward, a training step, a build and `tfkit check` enter; how
many files spell one attention feature; sizes; and the doors by which tests enter.

    python bench/house.py --json bench/results/house.json

A module is entered if one of its functions is called. What is imported at first use is imported before, and does not count.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
CORE = ROOT / "tfkit"
KIT = ROOT / "plugins" / "tfkit-conformance" / "tfkit_conformance"
FEATURE = "softcap"
CPU_WORDS = re.compile("onednn|prepack|mallopt|amx|avx", re.IGNORECASE)
PUBLIC = ("tfkit", "tfkit.plugin", "tfkit.plugin.flash_calls", "tfkit.plugin.model_parts", "tfkit.inspection", "tfkit.commands")
SMALL_FILE = 60
TOKENS, ROWS, LENGTH = (4, 60), 3, 7


def entered(action: Callable[[], object]) -> dict[str, int]:
    """The modules of tfkit that an action enters when it runs for the second time, their lines, functions and calls."""
    calls: Counter[tuple[str, int]] = Counter()

    def enter(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(CORE)):
            calls[frame.f_code.co_filename, frame.f_code.co_firstlineno] += 1

    action()
    sys.setprofile(enter)
    try:
        action()
    finally:
        sys.setprofile(None)
    files = {file for file, _ in calls}
    return {
        "modules": len(files),
        "lines": sum(line_count(Path(file)) for file in files),
        "functions": len(calls),
        "calls": sum(calls.values()),
    }


def actions(spec: str, folder: Path) -> dict[str, Callable[[], object]]:
    """What is traced, by name."""
    import torch
    from train_tokens import step_for

    import tfkit
    from tfkit.cli import main

    model = tfkit.build(spec, seed=0)
    inputs = {name: torch.randint(*TOKENS, (ROWS, LENGTH)) for name in model.plan.inputs}
    source = {name: ids for name, ids in inputs.items() if name != "target"}
    prompt = torch.full((ROWS, 1), TOKENS[0])
    options = argparse.Namespace(source=None, shape="tiny", rows=200, vocab=300, tokens=200)
    step = step_for(options, folder)

    def forward() -> None:
        with torch.no_grad():
            model.eval()(**inputs)

    return {
        "forward": forward,
        "training step": step.run,
        "beam search": lambda: tfkit.beam_search(model.eval(), beams=3, max_new_tokens=9, prompt=prompt, **source),
        "build": lambda: tfkit.build(spec, seed=0),
        "check": lambda: main(["check", spec]),
    }


def line_count(file: Path) -> int:
    return file.read_text(encoding="utf-8").count("\n")


def python_files(*places: Path) -> list[Path]:
    """The Python files under these places that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *(f"{place}/*.py" for place in places)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def imported_modules(file: Path) -> Iterator[str]:
    """The full names of modules, or of names in modules, that a file imports; also those that it names as `module:function`."""
    parts = file.relative_to(KIT.parent if KIT in file.parents else ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level] if node.level else ()
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            yield module
            yield from (f"{module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.]+:\w+", node.value):
            yield node.value.partition(":")[0]


def sizes(place: Path) -> dict[str, int]:
    """Files and lines, and the small files that one other module imports."""
    files = python_files(place)
    names = {".".join(file.relative_to(place.parent).with_suffix("").parts).removesuffix(".__init__"): file for file in files}
    importers: Counter[str] = Counter()
    for file in files:
        importers.update({name for name in set(imported_modules(file)) if name in names and names[name] != file})
    small = [name for name, file in names.items() if line_count(file) < SMALL_FILE and file.name != "__init__.py"]
    return {
        "files": len(files),
        "lines": sum(map(line_count, files)),
        "small files with one importer": sum(importers[name] == 1 for name in small),
    }


def test_doors() -> dict[str, int]:
    """How tests enter the product: imports of internal modules of tfkit, and attributes that they replace."""
    files = [file for file in python_files(ROOT / "tests", ROOT / "plugins") if "tests" in file.parts]
    internal = replaced = 0
    for file in files:
        text = file.read_text(encoding="utf-8")
        replaced += text.count("monkeypatch.setattr")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tfkit" and node.module not in PUBLIC:
                internal += 1
    return {"imports of internal modules": internal, "monkeypatch.setattr": replaced}


def spread(pattern: re.Pattern[str], files: list[Path]) -> int:
    return sum(bool(pattern.search(file.read_text(encoding="utf-8"))) for file in files)


def figures(spec: str) -> dict[str, Any]:
    """All figures, by name."""
    core, kit, feature = python_files(CORE), python_files(KIT), re.compile(FEATURE)
    outside = [file for file in core if not {"cpu", "doctor"} & set(file.relative_to(CORE).parts)]
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        traced = {name: entered(action) for name, action in actions(spec, Path(folder)).items()}
    return {
        "entered": traced,
        "feature": {"name": FEATURE, "core files": spread(feature, core), "kit files": spread(feature, kit)},
        "core files outside the CPU package that name its parts": spread(CPU_WORDS, outside),
        "tfkit": sizes(CORE),
        "conformance kit": sizes(KIT),
        "tests": test_doors(),
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", default=str(ROOT / "specs" / "transformer-base.yaml"))
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args(arguments)
    result = figures(given.spec)
    if given.json:
        given.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1, allow_nan=False))
    return result


if __name__ == "__main__":
    main()
