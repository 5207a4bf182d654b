"""`tfkit check`: all errors of all named specs and recipes. Suitable for pre-commit."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import click

from ..errors import Diagnostic, TfkitError
from .options import READ, common, set_option
from .output import print_diagnostics, print_json
from .packages import TEXT, import_torch

EPILOG = """\b
--json prints a list with one object per file: `file`, `ok`, `name` and
`parameters` (null if there are errors), and `diagnostics`, each with `code`,
`message`, `fix`, `path`, `file`, `line`, `column`.
Exit code 2 if any file has an error.
"""


@click.command("check", epilog=EPILOG)
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...", type=READ, help="Specs and recipes, YAML or JSON.")
@set_option
@common
def command(specs: tuple[str, ...], overrides: tuple[str, ...], as_json: bool) -> int:
    """Find all errors in specs and recipes.

    For a recipe, the model that it trains is checked too, with the recipe's changes, and whether the settings fit it. Files of
    data and pretrained models are not read. A spec is also refused if there is no device and dtype for which its attention
    backends serve all sites, a recipe if there is none for which they can train it.
    """
    from ..catalogue import load_catalogue
    from ..view.terminal import shown

    catalogue = load_catalogue()
    results = []
    for file in specs:
        result, problems = _check(file, catalogue, overrides)
        results.append(result)
        if as_json:
            continue
        print_diagnostics(problems, False)
        if result["ok"]:
            print(f"{shown(file)}: OK, {shown(result['name'])} has {result['parameters']:,} parameters", flush=True)
    if as_json:
        print_json(results)
    return 0 if all(result["ok"] for result in results) else 2


def _check(file: str, catalogue: Any, overrides: Sequence[str]) -> tuple[dict[str, Any], tuple[Diagnostic, ...]]:
    """What the command prints of a file, and its errors or its warnings."""
    from ..graph import Target, graph_of
    from ..graph.rules import MAX_SUBLAYERS
    from ..spec import load_spec, parse_spec
    from ..spec.located import Diagnostics
    from ..spec.published import file_named
    from ..spec.reader import read_source
    from .backend_args import check_possible

    warning = recipe = None
    try:
        place = file_named(file, "spec", "recipe")
        text = read_source(place, Diagnostics())  # once: it may come through a pipe
        if _describes_training(text, place):
            from ..graph import refused_arguments
            from ..recipe import (
                check_corpora,
                check_guided_alignment,
                check_image_settings,
                check_metric,
                check_packing,
                check_sampling,
                check_teacher_forcing,
                recipe_of,
                schedule_warning,
                without_smoothing,
            )

            recipe = recipe_of(text, place, overrides)
            check_image_settings(recipe)
            without_smoothing(recipe)
            check_metric(recipe)
            check_corpora(recipe)
            check_sampling(recipe)
            check_teacher_forcing(recipe)
            check_guided_alignment(recipe)
            warning = schedule_warning(recipe, recipe.stopping.max_steps)
            spec, name = load_spec(recipe.model, catalogue, recipe.changes, named_by=recipe.names("model")), recipe.name
            check_packing(recipe, refused_arguments(graph_of(spec)))
            use = Target(device=None, dtype=recipe.precision, training=True, compiled=recipe.compile)
        else:
            spec = parse_spec(text, catalogue, overrides, place)
            name = spec.name
            use = Target(device=None, dtype=None, training=False)
        graph = graph_of(spec)
        check_possible(spec, graph, catalogue, use)
        quick = sum(node.sublayers() for node in graph.nodes.values()) <= MAX_SUBLAYERS  # more take minutes to make
        if recipe is not None and quick and all(map(find_spec, TEXT)):
            import_torch()
            from ..train.fit_spec import check_model

            check_model(recipe, spec, catalogue)
    except TfkitError as error:
        diagnostics = [diagnostic.as_data() for diagnostic in error.diagnostics]
        return {"file": file, "ok": False, "name": None, "parameters": None, "diagnostics": diagnostics}, error.diagnostics
    warnings = () if warning is None else (warning,)
    diagnostics = [diagnostic.as_data() for diagnostic in warnings]
    return {"file": file, "ok": True, "name": name, "parameters": graph.parameters(), "diagnostics": diagnostics}, warnings


def _describes_training(text: str | bytes, file: str) -> bool:
    """Whether the text is a recipe. One that writes nodes is a spec: the package of recipes is not imported for it."""
    from ..spec.located import Diagnostics
    from ..spec.reader import read_text

    if "nodes" in read_text(text, file, Diagnostics()).mapping:
        return False
    from ..recipe import describes_training

    return describes_training(text, file)
