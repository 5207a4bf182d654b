"""`tfkit check`: every fault of every spec and recipe, in one go; made for pre-commit too."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import SpecError
from .arguments import Parser, add_common, add_set, reading
from .output import print_faults, print_json

EPILOG = """\
Of a recipe the model that it trains is checked too, with its changes.
--json prints a list with one object per file: `file`, `ok`, `name` and
`parameters` (null where there are faults), and `faults`, each with `code`,
`message`, `fix`, `path`, `file`, `line`, `column`.
Exit code 2 if any file has a fault."""


def arguments(parser: Parser) -> None:
    parser.add_argument("specs", metavar="SPEC", nargs="+", type=reading, help="specs and recipes, YAML or JSON")
    add_set(parser)
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    from ..catalogue import load_catalogue
    from ..view.terminal import shown

    catalogue = load_catalogue()
    results = []
    for file in options.specs:
        result, error = _check(file, catalogue, options.overrides)
        results.append(result)
        if options.json:
            continue
        if error is not None:
            print_faults(error.faults, False)
        else:
            print(f"{shown(file)}: OK, {shown(result['name'])} has {result['parameters']:,} parameters", flush=True)
    if options.json:
        print_json(results)
    return 0 if all(result["ok"] for result in results) else 2


def _check(file: str, catalogue: Any, overrides: list[str]) -> tuple[dict[str, Any], SpecError | None]:
    from ..graph import graph_of
    from ..recipe import describes_training, recipe_of
    from ..spec import load_spec, parse_spec
    from ..spec.marked import Faults
    from ..spec.reader import read_source

    try:
        text = read_source(file, Faults())  # once: it may come through a pipe
        if describes_training(text, file):
            recipe = recipe_of(text, file, overrides)
            name, graph = recipe.name, graph_of(load_spec(recipe.model, catalogue, recipe.changes))
        else:
            graph = graph_of(parse_spec(text, catalogue, overrides, file))
            name = graph.name
    except SpecError as error:
        faults = [fault.as_data() for fault in error.faults]
        return {"file": file, "ok": False, "name": None, "parameters": None, "faults": faults}, error
    return {"file": file, "ok": True, "name": name, "parameters": graph.parameters(), "faults": []}, None
