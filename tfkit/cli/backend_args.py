"""`--backend NAME[,NAME]`, which replaces the backends of the spec, and `--auto-table FILE`, which `auto` reads first.

`check`, `plan`, `build` and the model use the same function, without torch, to decide whether a backend can serve a site.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from pydantic import ValidationError

from ..attention.backend import AUTO
from ..catalogue import Catalogue
from ..errors import BackendRefused, Diagnostic, Location, SpecError
from ..graph import Graph, Target
from ..graph.model_graph import layers_of
from ..graph.plan import candidates_for, refusals
from ..slots.layer import layer_paths
from ..slots.options import Component
from ..spec.model import ModelSpec
from ..view.sites import SiteGroup, all_sites, fold
from .term_origins import with_origins
from .usage import usage_error


def catalogue_with(auto_table: str | None) -> Catalogue:
    """The catalogue of installed plugins, with the table of `--auto-table`.

    Args:
        auto_table: the file of the table, or None.

    Returns:
        The catalogue.

    Raises:
        InputError: the file is not a valid table.
    """
    from ..catalogue import load_catalogue

    catalogue = load_catalogue()
    return catalogue if auto_table is None else catalogue.with_auto_table(auto_table)


def check_auto(backend: Sequence[str] | None, auto_table: str | None) -> None:
    """Check that `--auto-table` has an effect.

    Args:
        backend: the names of `--backend`, or None.
        auto_table: the file of `--auto-table`, or None.

    Raises:
        UsageError: `--backend` names another backend than `auto`.
    """
    if auto_table is not None and backend not in (None, [AUTO.name]):
        named = ",".join(backend)
        raise usage_error(f"--auto-table is for `auto`, and --backend names {named}", "leave one of them out")


def requested_backends_of(names: Sequence[str] | None, catalogue: Catalogue) -> tuple[Component, ...] | None:
    """The backends of `--backend`, with default options.

    Args:
        names: their names, or None.
        catalogue: the installed backends.

    Returns:
        The backends in order of preference; None without names.

    Raises:
        SpecError: a name is unknown, or its backend needs options.
        UsageError: `auto` is listed with another name.
    """
    if names is None:
        return None
    if AUTO.name in names and len(names) > 1:
        raise usage_error(
            "argument --backend: `auto` chooses among all backends, so no other may be listed with it",
            "write it alone, or leave it out",
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise usage_error(f"argument --backend: `{twice}` is named twice", "name each backend once, in order of preference")
    parts, diagnostics = [], []
    for name in names:
        entry = catalogue.find("backend", name)
        if entry is None:
            fix = catalogue.why_missing("backend", name)
            diagnostics.append(Diagnostic("TFK012", f"argument --backend: there is no attention backend `{name}`", fix))
            continue
        try:
            parts.append(Component(entry, entry.options()))
        except ValidationError:
            fix = "write it in the spec, or with --set, as a mapping with its options"
            diagnostics.append(Diagnostic("TFK012", f"argument --backend: `{name}` needs options", fix))
    if diagnostics:
        raise SpecError(diagnostics)
    return tuple(parts)


def check_served(
    spec: ModelSpec, graph: Graph, catalogue: Catalogue, target: Target, requested: tuple[Component, ...] | None
) -> None:
    """Raises BackendRefused if no requested backend can serve a site on this target, even without training. The error is
    located in the spec unless `--backend` requested the backends."""
    groups = fold(all_sites(graph, requested).items())
    diagnostics = group_refusals(groups, catalogue, replace(target, training=False))
    if diagnostics:
        diagnostics = with_origins(diagnostics, spec, graph, groups)
        raise BackendRefused(diagnostics if requested else located(diagnostics, spec, graph, groups))


def check_possible(spec: ModelSpec, graph: Graph, catalogue: Catalogue, use: Target) -> None:
    """Raises BackendRefused, located in the spec, if there is no device and dtype for which the requested backends serve every
    site. If `use` has no device or no dtype, all that a backend declares are tried."""
    groups = fold(all_sites(graph).items())
    diagnostics = group_refusals(groups, catalogue, use)  # refused on every device and in every dtype
    if not diagnostics:
        allowed = [entry for group in groups for entry, _ in candidates_for(group.site.backend, catalogue)[0]]
        devices = sorted({device.kind for entry in allowed for device in entry.capabilities.devices})
        dtypes = sorted({dtype for entry in allowed for dtype in entry.capabilities.dtypes})
        for device, dtype in product([use.device] if use.device else devices, [use.dtype] if use.dtype else dtypes):
            refusals = group_refusals(groups, catalogue, replace(use, device=device, dtype=dtype))
            if not refusals:
                return
            diagnostics = diagnostics or refusals
    if diagnostics:
        raise BackendRefused(located(with_origins(diagnostics, spec, graph, groups), spec, graph, groups))


def group_refusals(groups: Sequence[SiteGroup], catalogue: Catalogue, target: Target) -> list[Diagnostic]:
    """An error for each group of equal sites that no requested backend can serve on this target."""
    return refusals(((group.name, group.site) for group in groups), catalogue, target)


def located(diagnostics: Sequence[Diagnostic], spec: ModelSpec, graph: Graph, groups: Sequence[SiteGroup]) -> list[Diagnostic]:
    """The errors about groups of sites, with the locations of their backends in the spec."""
    places = {group.name: _location(spec, graph, group) for group in groups}
    return [replace(diagnostic, location=places[diagnostic.path]) for diagnostic in diagnostics]


def _location(spec: ModelSpec, graph: Graph, group: SiteGroup) -> Location | None:
    """The location of the backends of a group of sites, or the nearest enclosing location."""
    node, _, rest = group.sites[0].partition(".")
    name = rest.partition(".")[2]
    for path, layer in layer_paths(layers_of(graph.nodes[node].options), f"nodes.{node}.layers"):
        for number, part in enumerate(layer.sublayers or ()):
            if part.options.name == name and getattr(part.options, "backend", None) == group.site.backend:
                return spec.location_of(f"{path}.sublayers.{number}.backend")
    return spec.location_of(f"nodes.{node}")
