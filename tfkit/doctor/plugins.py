"""The plugins: which load, and whether the code that their entries name can be imported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ..catalogue import LAZY, BrokenPlugin, Catalogue, load_catalogue
from ..errors import PluginError
from ..slots.lazy import load
from .finding import Findings, in_one_line

GROUPS = ("tfkit.commands", "tfkit.functions", "tfkit.checks")
"""The other entry-point groups."""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


def catalogue_here(findings: Findings) -> Catalogue:
    """All entries, or the built-in ones if the plugins contradict each other. A broken plugin is a problem."""
    try:
        catalogue = load_catalogue()
    except PluginError as error:
        for diagnostic in error.diagnostics:
            findings.problem(f"no model can be built: {diagnostic.message}", diagnostic.fix)
        return load_catalogue(point for point in entry_points(group="tfkit") if point.name == "builtin")
    for plugin in catalogue.broken:
        findings.problem(f"the plugin {plugin.plugin} of {plugin.distribution} is broken: {plugin.reason}", repair(plugin))
    return catalogue


def plugins_here(catalogue: Catalogue, findings: Findings, with_code: bool = True) -> list[dict[str, Any]]:
    """The plugins that load. An entry whose code cannot be imported is a problem, or a note if only a package is missing. No
    code is imported unless `with_code`: without torch none can be."""
    for name, distribution, reference in _references(catalogue) if with_code else ():
        try:
            load(reference)
        except PluginError as error:
            cause = error.__cause__
            missing = cause.name.partition(".")[0] if isinstance(cause, ModuleNotFoundError) and cause.name else ""
            what = f"`{name}` of {distribution} cannot run"
            if missing and missing != reference.partition(".")[0].partition(":")[0]:
                findings.note(f"{what}: the package {missing} is not installed", f"pip install {missing}")
            else:
                fix = f"reinstall {distribution}, or report it to its authors"
                findings.problem(f"{what}: {reference}: {in_one_line(cause or error)}", fix)
    for group in GROUPS if with_code else ():
        for point in entry_points(group=group):
            _try(point, findings)
    return [dict(zip(("name", "distribution", "version"), plugin, strict=True)) for plugin in catalogue.plugins]


def repair(plugin: BrokenPlugin) -> str:
    """How to repair a broken plugin."""
    remove = f"pip uninstall {plugin.distribution}"
    missing = _MISSING.search(plugin.reason)
    if missing:
        return f"install the package that provides `{missing[1].partition('.')[0]}`, or remove the plugin: {remove}"
    return f"pip install --force-reinstall --no-deps {plugin.distribution}, or remove the plugin: {remove}"


def _references(catalogue: Catalogue) -> Iterator[tuple[str, str, str]]:
    """The code that entries of plugins name: entry, distribution and reference."""
    for table in catalogue.registered.values():
        for name, registration in table.items():
            if registration.plugin == "builtin":
                continue
            for field in fields(registration.entry):
                reference = getattr(registration.entry, field.name)
                if field.name in LAZY and isinstance(reference, str):
                    yield name, registration.distribution, reference


def _try(point: EntryPoint, findings: Findings) -> None:
    owner = point.dist.name if point.dist else point.name
    try:
        point.load()
    except (Exception, SystemExit) as reason:  # an import of a plugin may raise anything
        what = f"`{point.name}` of {owner} ({point.group}) cannot be imported: {in_one_line(reason)}"
        findings.problem(what, f"pip install --force-reinstall {owner}")
