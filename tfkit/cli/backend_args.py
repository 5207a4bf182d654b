"""`--backend NAME[,NAME]`: the wish that replaces those of the spec, and who could serve a site that nobody serves.
`--auto-table FILE`: what `auto` goes by.

Whether a backend serves a site is decided without torch, by the same function for `check`, `plan`, `build` and the model."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

from pydantic import ValidationError

from ..attention.backend import AUTO
from ..attention.selection import ranked, refusal
from ..catalogue import Catalogue
from ..errors import BackendRefused, Diagnostic, Location, SpecError
from ..graph import Graph, Target
from ..graph.model_graph import layers_of
from ..graph.plan import candidates_for, request_for
from ..slots.layer import layer_paths
from ..slots.options import Component
from ..spec.model import ModelSpec
from ..view.sites import SiteGroup, all_sites, fold
from .arguments import usage_error


def catalogue_of(options: argparse.Namespace) -> Catalogue:
    """All that is installed, with the table of `--auto-table`. Raises InputError where that is none."""
    from ..catalogue import load_catalogue

    catalogue = load_catalogue()
    return catalogue if options.auto_table is None else catalogue.with_auto_table(options.auto_table)


def check_auto(options: argparse.Namespace) -> None:
    """Raises UsageError where `--auto-table` changes nothing: `--backend` names others than `auto`."""
    if options.auto_table is not None and options.backend not in (None, [AUTO.name]):
        named = ",".join(options.backend)
        raise usage_error(f"--auto-table is what `auto` goes by, and --backend names {named}", "leave one of them out")


def requested_backends_of(names: Sequence[str] | None, catalogue: Catalogue) -> tuple[Component, ...] | None:
    """The backends of these names with their options as they are by default. Raises SpecError for one that nobody offers."""
    if names is None:
        return None
    if AUTO.name in names and len(names) > 1:
        raise usage_error(
            "argument --backend: `auto` chooses among all backends and stands alone", "write it alone, or leave it out"
        )
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


def check_served(graph: Graph, catalogue: Catalogue, target: Target, requested: tuple[Component, ...] | None) -> None:
    """Raises BackendRefused where no allowed backend can serve a site on this target, not even without training."""
    diagnostics = refusals(fold(all_sites(graph, requested).items()), catalogue, replace(target, training=False))
    if diagnostics:
        raise BackendRefused(diagnostics)


def check_possible(spec: ModelSpec, graph: Graph, catalogue: Catalogue, use: Target) -> None:
    """Raises BackendRefused, located in the spec, where there is no device and dtype on which the allowed backends serve every
    site. A device or dtype of `use` that is None is any that one of them declares."""
    groups = fold(all_sites(graph).items())
    diagnostics = refusals(groups, catalogue, use)  # what is refused whatever the device and the dtype
    if not diagnostics:
        allowed = [entry for group in groups for entry, _ in candidates_for(group.site.backend, catalogue)[0]]
        devices = sorted({device.kind for entry in allowed for device in entry.capabilities.devices})
        dtypes = sorted({dtype for entry in allowed for dtype in entry.capabilities.dtypes})
        for device, dtype in product([use.device] if use.device else devices, [use.dtype] if use.dtype else dtypes):
            found = refusals(groups, catalogue, replace(use, device=device, dtype=dtype))
            if not found:
                return
            diagnostics = diagnostics or found
    if diagnostics:
        field_annotations = {group.name: _mark(spec, graph, group) for group in groups}
        raise BackendRefused(replace(diagnostic, location=field_annotations[diagnostic.path]) for diagnostic in diagnostics)


def _mark(spec: ModelSpec, graph: Graph, group: SiteGroup) -> Location | None:
    """Where the backends of a group of sites are written, or the nearest place around it."""
    node, _, rest = group.sites[0].partition(".")
    name = rest.partition(".")[2]
    for path, layer in layer_paths(layers_of(graph.nodes[node].options), f"nodes.{node}.layers"):
        for number, part in enumerate(layer.sublayers or ()):
            if part.options.name == name and getattr(part.options, "backend", None) == group.site.backend:
                return spec.mark_of(f"{path}.sublayers.{number}.backend")
    return spec.mark_of(f"nodes.{node}")


def refusals(groups: Iterable[SiteGroup], catalogue: Catalogue, target: Target) -> list[Diagnostic]:
    """A fault for every group of sites that no allowed backend can serve on this target."""
    others = catalogue.ready("backend")
    diagnostics = []
    for group in groups:
        candidates, automatic = candidates_for(group.site.backend, catalogue)
        request = request_for(group.site, target)
        order = ranked(candidates, request, automatic)
        if not any(verdict.accepted for _, verdict in order):
            requested = "auto" if automatic else ", ".join(part.kind for part in group.site.backend)
            diagnostics.append(refusal(group.name, requested, order, candidates, request, others))
    return diagnostics
