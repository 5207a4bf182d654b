"""Overrides from the command line, such as `--set encoder.num_layers=12`: values that are merged over the file.

`nodes.` may be left out, because no node has the name of a top-level key. Items of lists are numbered from 0. `null` removes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..errors import Location
from .extends import OWN
from .grammar import Grammar
from .hints import did_you_mean
from .located import INVALID, Diagnostics, Located, child_path, item_number, short
from .merge import as_part, over
from .reader import MAX_DEPTH, read_value

FIXED = ("tfkit", "extends")
FLAG = "--set "
MOST = 1_000
"""Overrides of a command."""
MOST_COMPARED = 600_000
"""Each override is compared with all values of the spec: so many in all, which takes a second or two."""


def apply(root: Located, overrides: Sequence[str], grammar: Grammar, diagnostics: Diagnostics) -> Located:
    """The spec with all overrides merged over it, in order.

    The last override of a path wins. An override without effect is an error: `norm.eps=1e-5` before `norm.kind=rms_norm`,
    which replaces all options. `expect` describes the model of the file without overrides, so an override removes it unless
    another override sets it. Raises SpecError for too many overrides.
    """
    if len(overrides) > MOST:
        message = f"{len(overrides):,} overrides are given, and at most {MOST:,} are read"
        diagnostics.add(
            "TFK017", Location(f"{FLAG}{short(overrides[MOST])}"), "", message, "write them in a file that `extends` this one"
        )
        raise diagnostics.error()
    keys = {override.partition("=")[0].split(".")[0] for override in overrides}
    if keys - OWN and "expect" not in keys:
        root = root.holding({key: child for key, child in root.mapping.items() if key != "expect"})
    removed = {override.partition("=")[0] for override in overrides} & OWN
    written: dict[Location, str] = {}
    compared = 0
    for override in overrides:
        errors_before = len(diagnostics)
        root = _Override(override, grammar, diagnostics).on(root)
        kept = _leaves(root)
        compared += len(kept)
        if compared > MOST_COMPARED:
            message = f"{len(overrides):,} overrides are compared with more than {MOST_COMPARED:,} values of the spec in all"
            place = Location(f"{FLAG}{short(override)}")
            diagnostics.fatal("TFK017", place, "", message, "write them in a file that `extends` this one")
        if len(diagnostics) == errors_before:
            _report_lost(written, kept, override, diagnostics)
        written = {location: path for location, path in kept.items() if location.file.startswith(FLAG)}
    return root.holding({key: child for key, child in root.mapping.items() if key not in removed or child.value is not None})


def _leaves(node: Located) -> dict[Location, str]:
    """The locations of all scalars, with the paths that they set: `norm=rms_norm` sets the `kind` of `norm`."""
    below = [*node.mapping.values(), *node.items]
    if below or node.value is None or node.value is INVALID:
        return {location: path for child in below for location, path in _leaves(child).items()}
    return {node.location: node.path.removesuffix(".kind")}


def _report_lost(
    written: Mapping[Location, str], kept: Mapping[Location, str], override: str, diagnostics: Diagnostics
) -> None:
    """Adds an error for each value of an earlier override that this override removes and does not set again."""
    again = {path for location, path in kept.items() if location not in written}
    for location, path in written.items():
        earlier = location.file.removeprefix(FLAG).partition("=")[0]
        if location not in kept and path not in again and earlier != override.partition("=")[0]:
            message = f"it has no effect: `{FLAG}{short(override)}`, which comes after it, replaces this value"
            diagnostics.add("TFK017", location, path, message, "write it after that one, or leave it out")


class _Override:
    def __init__(self, text: str, grammar: Grammar, diagnostics: Diagnostics) -> None:
        self.text, self.grammar, self.diagnostics = text, grammar, diagnostics
        self.file = f"{FLAG}{short(text)}"
        self.path, self.equals, self.value = text.partition("=")

    def diagnostic(self, message: str, fix: str = "") -> None:
        self.diagnostics.add("TFK017", Location(self.file), short(self.path), message, fix)

    def on(self, root: Located) -> Located:
        steps = self.path.split(".")
        if not self.equals or not all(steps):
            self.diagnostic("an override is written key.path=value", "for example `--set encoder.num_layers=12`")
            return root
        if len(steps) > MAX_DEPTH:
            self.diagnostic(f"a path has at most {MAX_DEPTH} keys, and this one has {len(steps):,}")
            return root
        if steps[0] in FIXED:
            self.diagnostic(f"`{steps[0]}` cannot be overridden", "write it in the file")
            return root
        if steps[0] not in self.grammar.top:
            nodes = root.get("nodes")
            if nodes is None or steps[0] not in nodes.mapping:
                known = [*self.grammar.top, *(nodes.mapping if nodes else ())]
                fix = did_you_mean(steps[0], known, "there are")
                if steps[0] in self.grammar.default_keys:
                    fix = f"write `defaults.{short(self.path)}`, or the node before it"
                elif len(steps) == 1 and self.value.lstrip().startswith("{"):
                    fix = f"a new node is written `nodes.{short(self.path)}={{...}}`"
                what = "no node and no key" if nodes is not None else "no key"
                self.diagnostic(f"there is {what} `{short(steps[0])}`", fix)
                return root
            steps = ["nodes", *steps]
        value = read_value(self.value, self.file, self.diagnostics, ".".join(steps), len(self.path) + 1)
        place = Location(self.file, 1, len(self.path) + 2)
        near = Located(None, place, ".".join(steps), "null") if value is None else value
        layer = self.wrapped(root, steps, near)
        return root if layer is None else over(root, layer, self.grammar.slots, removing=True)

    def wrapped(self, node: Located | None, steps: list[str], near: Located, path: str = "") -> Located | None:
        """The value in mappings that can be merged over `node`, or None after an error. A list on the path is copied."""
        if not steps:
            return near
        if node is not None and isinstance(node.value, list):
            return self.in_list(node, steps, near)
        slot = path.rpartition(".")[2] in self.grammar.slots or item_number(path.rpartition(".")[2]) is not None
        if node is not None and not isinstance(node.value, (dict, str) if slot else dict):
            if node.value is not INVALID:
                value = "" if node.location.file in self.diagnostics.elsewhere else f": {node.shown}"
                self.diagnostic(f"`{short(path)}` has no keys{value}")
            return None
        step, rest = steps[0], steps[1:]
        child = node.get(step) if node is not None else None
        if child is None and rest and path == "nodes":
            self.diagnostic(f"there is no node `{short(step)}`", did_you_mean(step, node.mapping if node else (), "nodes"))
            return None
        below = self.wrapped(child, rest, near, child_path(path, step))
        if below is None:
            return None
        named = {step: replace(below, key=child.key if child and rest else near.location)}
        return Located(named, near.location, path) if node is None else replace(node, value=named)

    def in_list(self, node: Located, steps: list[str], near: Located) -> Located | None:
        step, rest = steps[0], steps[1:]
        items = list(node.items)
        number = item_number(step)
        if number is None or number >= len(items):
            fix = f"items go from 0 to {len(items) - 1}" if items else "the list is empty"
            self.diagnostic(f"there is no item `{short(step)}`", fix)
            return None
        layer = self.wrapped(items[number], rest, near, child_path(node.path, number))
        if layer is None:
            return None
        if layer.value is None:
            del items[number]
        else:
            far = as_part(items[number]) if rest else items[number]
            items[number] = over(far, layer, self.grammar.slots, removing=True)
        return node.holding(items)
