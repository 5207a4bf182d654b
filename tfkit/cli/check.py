"""`tfkit check`: every fault of every spec and recipe, in one go; made for pre-commit too."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import TfkitError
from .arguments import Parser, add_common, add_set, reading
from .output import print_diagnostics, print_json

EPILOG = """\
Of a recipe the model that it trains is checked too, with its changes.
Attention backends are held to what every site asks: a spec is refused where
no device and dtype is left on which its backends serve it, a recipe where
none is left on which they train it.
--json prints a list with one object per file: `file`, `ok`, `name` and
`parameters` (null where there are faults), and `diagnostics`, each with `code`,
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
            print_diagnostics(error.diagnostics, False)
        else:
            print(f"{shown(file)}: OK, {shown(result['name'])} has {result['parameters']:,} parameters", flush=True)
    if options.json:
        print_json(results)
    return 0 if all(result["ok"] for result in results) else 2


def _check(file: str, catalogue: Any, overrides: list[str]) -> tuple[dict[str, Any], TfkitError | None]:
    from ..graph import Target, graph_of
    from ..recipe import check_metric, describes_training, recipe_of
    from ..spec import load_spec, parse_spec
    from ..spec.located import Diagnostics
    from ..spec.reader import read_source
    from .backend_args import check_possible

    try:
        text = read_source(file, Diagnostics())  # once: it may come through a pipe
        if describes_training(text, file):
            recipe = recipe_of(text, file, overrides)
            check_metric(recipe)
            spec, name = load_spec(recipe.model, catalogue, recipe.changes), recipe.name
            use = Target(device=None, dtype=recipe.precision, training=True, compiled=recipe.compile)
        else:
            spec = parse_spec(text, catalogue, overrides, file)
            name = spec.name
            use = Target(device=None, dtype=None, training=False)
        graph = graph_of(spec)
        check_possible(spec, graph, catalogue, use)
    except TfkitError as error:
        diagnostics = [diagnostic.as_data() for diagnostic in error.diagnostics]
        return {"file": file, "ok": False, "name": None, "parameters": None, "diagnostics": diagnostics}, error
    return {"file": file, "ok": True, "name": name, "parameters": graph.parameters(), "diagnostics": []}, None
