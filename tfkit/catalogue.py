"""All entries of the installed plugins, collected once and immutable.

Plugins, the built-in one included, are found through the entry-point group `tfkit`. The catalogue lists a plugin that fails to
import with the reason; it is an error only if a spec names one of its parts. Two entries with one name and misspelt hooks are
always errors.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pluggy
from pydantic import ValidationError

from . import hooks
from .attention.auto_table import parse_table
from .attention.backend import AUTO, AttentionBackend
from .attention.capabilities import BIAS_KINDS, MASK_TERMS
from .distribution import GROUP, is_installed_twice, other_project
from .errors import Diagnostic, InputError, InstallationWarning, PluginError
from .errors.arguments import in_words
from .files import read_text
from .hooks import SLOTS
from .slots.aliases import did_you_mean, meant
from .slots.options import CONTRACT, Component, Entry, Options, SlotField

LAZY = frozenset({"attend", "prepare", "build", "function", "pack", "multiply"})
"""Fields of entries that name code as "module:function"."""


@dataclass(frozen=True)
class Registration:
    """An entry and the distribution that registers it."""

    entry: Any
    plugin: str
    distribution: str


@dataclass(frozen=True)
class BrokenPlugin:
    """A plugin that could not be loaded, with the reason."""

    plugin: str
    distribution: str
    reason: str


@dataclass(frozen=True)
class DisabledEntry:
    """A name that several plugins register, so that it says nothing."""

    slot: str
    name: str
    distributions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.slot} `{self.name}` is registered by {' and '.join(self.distributions)}"


UNINSTALL_ONE = "uninstall one, or rename its entry with a prefix"


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Every entry by slot and name. Immutable and compared by identity; passed as an argument, never global.

    Args:
        registered: by slot and name, each entry with its plugin.
        broken: the plugins that could not be loaded.
        plugins: name, distribution and version of each loaded plugin.
        disabled: the names that several plugins register. Built-in entries keep theirs.
    """

    registered: Mapping[str, Mapping[str, Registration]]
    broken: tuple[BrokenPlugin, ...] = ()
    plugins: tuple[tuple[str, str, str], ...] = field(default=())
    disabled: tuple[DisabledEntry, ...] = ()

    def find(self, slot: str, name: str) -> Any:
        """Look up an entry. The backend `auto` belongs to the spec language and always exists.

        Args:
            slot: name of the slot, a key of `tfkit.hooks.SLOTS`.
            name: name of the entry.

        Returns:
            The entry, or None.
        """
        if slot == "backend" and name == AUTO.name:
            return AUTO
        registration = self.registered[slot].get(name)
        return registration.entry if registration else None

    def __deepcopy__(self, memo: object) -> Catalogue:
        return self  # immutable

    def names(self, slot: str) -> list[str]:
        """The names of the entries of a slot.

        Args:
            slot: name of the slot.

        Returns:
            The names, sorted.
        """
        return sorted(self.registered[slot])

    def entries(self, slot: str) -> list[Any]:
        """The entries of a slot.

        Args:
            slot: name of the slot.

        Returns:
            The entries, sorted by name.
        """
        return [self.registered[slot][name].entry for name in self.names(slot)]

    def ready(self, slot: str) -> tuple[tuple[Any, Any], ...]:
        """The entries of a slot that need no options.

        Args:
            slot: name of the slot.

        Returns:
            Each entry without a required option, with its default options.
        """
        ready_entries = []
        for entry in self.entries(slot):
            with suppress(ValidationError):
                ready_entries.append((entry, entry.options()))
        return tuple(ready_entries)

    def why_missing(self, slot: str, name: str) -> str:
        """Explain why there is no entry with a name.

        Args:
            slot: name of the slot.
            name: the name.

        Returns:
            The fix for an error message: the broken plugin, the name that was probably meant, or all known names.
        """
        for clash in self.disabled:
            if (clash.slot, clash.name) == (slot, name) and name not in self.registered[slot]:
                return f"{clash}; {UNINSTALL_ONE}"
        stem = name.split(".")[0]
        for plugin in self.broken:
            if plugin.plugin in (name, stem, name.replace(".", "_")) or plugin.distribution in (f"tfkit-{stem}", stem):
                return f"`{name}` is provided by {plugin.distribution}, which failed to import because {plugin.reason}"
        near = meant(slot, name, [*self.registered[slot], *([AUTO.name] if slot == "backend" else [])])
        if near:
            return did_you_mean(near)
        return f"known: {', '.join(self.names(slot))}" + (
            "; install the plugin that provides it (`tfkit plugins` lists those installed)" if "." in name else ""
        )

    def score_filter(self, written: Any) -> Component:
        """A score filter for a search.

        Args:
            written: its name, or a mapping with `kind` and its options, as a spec writes a part.

        Returns:
            The filter.

        Raises:
            InputError: there is no such filter, or its options are wrong.
        """
        kind = written.get("kind") if isinstance(written, Mapping) else written
        entry = self.find("score_filter", kind) if isinstance(kind, str) else None
        if entry is None:
            fix = self.why_missing("score_filter", str(kind))
            raise InputError(Diagnostic("TFK078", f"there is no score filter {in_words(kind)}", fix))
        try:
            return SlotField("score_filter").resolve(written, SimpleNamespace(context={"catalogue": self}))
        except ValidationError as reason:
            first, known = reason.errors()[0], ", ".join(entry.options.model_fields) or "it has none"
            message = f"score filter `{kind}`: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise InputError(Diagnostic("TFK078", message, f"its options: {known}")) from None

    def with_plugin(self, plugin: Any, name: str) -> Catalogue:
        """A catalogue with more entries.

        Args:
            plugin: a module or object with hook implementations.
            name: the name of the plugin in errors and listings.

        Returns:
            A new catalogue. This one is unchanged.

        Raises:
            PluginError: an entry is invalid, or its name is taken.
        """
        manager = _manager()
        manager.register(plugin, name)
        registered = {slot: dict(table) for slot, table in self.registered.items()}
        for clash in _collect(manager, {name: name}, registered, []):
            raise PluginError(Diagnostic("TFK052", str(clash), UNINSTALL_ONE))
        return Catalogue(_frozen(registered), self.broken, (*self.plugins, (name, name, "")), self.disabled)

    def with_auto_table(self, path: str | Path) -> Catalogue:
        """A catalogue in which `auto` reads a user's table before those of the plugins.

        Args:
            path: a file that `tfkit bench auto --json FILE` wrote.

        Returns:
            A new catalogue. This one is unchanged.

        Raises:
            InputError: the file is not a valid table, or it measures a backend that is not installed.
        """
        try:
            text = read_text(path, descriptors=True)
        except OSError as reason:
            fix = "name a file that `tfkit bench auto --json FILE` wrote"
            raise InputError(Diagnostic("TFK062", f"{path} cannot be read: {reason.strerror}", fix)) from None
        backends = dict(self.registered["backend"])
        for name, rows in parse_table(text, str(path)).items():
            if name not in backends:
                fix = "install its plugin, or measure without it (tfkit bench auto --backends)"
                raise InputError(Diagnostic("TFK062", f"{path} measures `{name}`, which is not installed", fix))
            entry = backends[name].entry
            backends[name] = replace(backends[name], entry=replace(entry, auto=(*rows, *entry.auto)))
        return replace(self, registered=_frozen({**self.registered, "backend": backends}))


def load_catalogue(points: Iterable[EntryPoint] | None = None) -> Catalogue:
    """Collect the entries of all plugins. Those of the installed ones are collected again only after an installation.

    Args:
        points: entry points of plugins; by default all installed ones.

    Returns:
        The catalogue, which also lists the plugins that failed to import.

    Raises:
        PluginError: a hook's name is misspelt, or an entry is invalid for its slot.

    Warns:
        InstallationWarning: two plugins register one name (TFK052), or another project has tfkit's modules (TFK057).
    """
    return _installed(entry_points, _places()) if points is None else _collected(points)


def score_filter(kind: str, /, **options: Any) -> Component:
    """A score filter for a search: `score_filter("no_repeat_ngram", size=3)`.

    Args:
        kind: name of an installed filter.
        **options: its options.

    Returns:
        The filter, for the argument `filters` of a search.

    Raises:
        InputError: there is no such filter, or its options are wrong.
    """
    return load_catalogue().score_filter({**options, "kind": kind})


def _places() -> tuple[tuple[str, int], ...]:
    """The directories of Python's path, and when something was last installed in each."""
    places = []
    for place in sys.path:
        with suppress(OSError):
            places.append((place, os.stat(place or ".").st_mtime_ns))
    return tuple(places)


@lru_cache(maxsize=1)
def _installed(find: Callable[..., Iterable[EntryPoint]], places: tuple[tuple[str, int], ...]) -> Catalogue:
    other = other_project()
    if other is not None:
        warnings.warn(str(Diagnostic("TFK057", *other)), InstallationWarning, stacklevel=3)
    catalogue = _collected(find(group=GROUP))
    for clash in catalogue.disabled:
        kept = "the built-in one is used" if clash.name in catalogue.registered[clash.slot] else "neither is used"
        warnings.warn(str(Diagnostic("TFK052", f"{clash}: {kept}", UNINSTALL_ONE)), InstallationWarning, stacklevel=3)
    return catalogue


def _collected(points: Iterable[EntryPoint]) -> Catalogue:
    manager = _manager()
    broken: list[BrokenPlugin] = []
    owners: dict[str, str] = {}
    plugins: list[tuple[str, str, str]] = []
    for point in sorted(points, key=lambda point: point.name != "builtin"):
        if is_installed_twice(point):
            continue
        dist = point.dist
        distribution, version = (dist.name, dist.version) if dist else (point.name, "")
        if point.name in owners:
            message = f"its name is also that of a plugin of `{owners[point.name]}`; uninstall one of them"
            broken.append(BrokenPlugin(point.name, distribution, message))
            continue
        try:
            manager.register(point.load(), point.name)
        except (Exception, SystemExit) as reason:  # a broken plugin must not break the others
            broken.append(BrokenPlugin(point.name, distribution, _describe(reason)))
            continue
        owners[point.name] = distribution
        plugins.append((point.name, distribution, version))
    registered: dict[str, dict[str, Registration]] = {slot: {} for slot in SLOTS}
    disabled = _collect(manager, owners, registered, broken)
    return Catalogue(_frozen(registered), tuple(broken), tuple(plugins), tuple(disabled))


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager("tfkit")
    manager.add_hookspecs(hooks)
    return manager


def _frozen(registered: Mapping[str, Mapping[str, Registration]]) -> Mapping[str, Mapping[str, Registration]]:
    return MappingProxyType({slot: MappingProxyType(dict(table)) for slot, table in registered.items()})


def _collect(
    manager: pluggy.PluginManager,
    owners: dict[str, str],
    registered: dict[str, dict[str, Registration]],
    broken: list[BrokenPlugin],
) -> list[DisabledEntry]:
    """Adds the entries of the plugins to `registered`, and returns the names that several register."""
    known = [hook for hook, _ in SLOTS.values()]
    for plugin in manager.get_plugins():
        for name in dir(plugin):
            if name not in known and manager.parse_hookimpl_opts(plugin, name) is not None:
                owner = owners.get(str(manager.get_name(plugin)), "?")
                near = difflib.get_close_matches(name, known, 1)
                fix = f"did you mean `{near[0]}`?" if near else f"hooks: {', '.join(known)}"
                raise PluginError(Diagnostic("TFK051", f"{owner} implements `{name}`, which is not a hook of tfkit", fix))
    clashes: dict[tuple[str, str], list[Registration]] = {}
    for slot, (hook, kind) in SLOTS.items():
        for implementation in getattr(manager.hook, hook).get_hookimpls():
            plugin = implementation.plugin_name
            distribution = owners.get(plugin, plugin)
            try:
                entries = implementation.function()
            except (Exception, SystemExit) as reason:
                broken.append(BrokenPlugin(plugin, distribution, f"{hook}() raised {_describe(reason)}"))
                continue
            if not isinstance(entries, (list, tuple)):
                message = f"{distribution}: {hook}: it returned {type(entries).__name__}, not a list"
                raise PluginError(Diagnostic("TFK050", message, f"return a list of {kind.__name__} entries"))
            for entry in entries:
                _check_entry(entry, kind, slot, hook, distribution)
                registration = Registration(entry, plugin, distribution)
                other = registered[slot].setdefault(entry.name, registration)
                if other is not registration:
                    clashes.setdefault((slot, entry.name), [other]).append(registration)
    for (slot, name), several in clashes.items():
        if several[0].plugin != "builtin":
            del registered[slot][name]
    return [
        DisabledEntry(slot, name, tuple(dict.fromkeys(registration.distribution for registration in several)))
        for (slot, name), several in clashes.items()
    ]


def _describe(reason: BaseException) -> str:
    """An exception as one line."""
    return " ".join(f"{type(reason).__name__}: {reason}".split())


def _check_entry(entry: Any, kind: type[Entry], slot: str, hook: str, distribution: str) -> None:
    def refuse(message: str, fix: str) -> None:
        raise PluginError(Diagnostic("TFK050", f"{distribution}: {hook}: {message}", fix))

    if not isinstance(entry, kind):
        refuse(f"{entry!r} is not of type {kind.__name__}", f"return a list of {kind.__name__} entries")
    if not entry.name or not all(piece.isidentifier() for piece in entry.name.split(".")):
        refuse(f"`{entry.name}` cannot be written in a spec", "use letters, digits, underscores and a prefix: `acme.flash`")
    if entry.name == "auto" and slot == "backend":
        refuse("`auto` is a word of the spec language", "choose another name")
    if not (isinstance(entry.options, type) and issubclass(entry.options, Options)):
        refuse(
            f"the options of `{entry.name}` are not a subclass of tfkit.plugin.Options", "derive them from tfkit.plugin.Options"
        )
    if entry.contract != CONTRACT:
        refuse(
            f"`{entry.name}` was written for contract {entry.contract}, this tfkit has contract {CONTRACT}",
            "install a version of the plugin for this contract",
        )
    for name in LAZY.intersection(entry_field.name for entry_field in fields(entry)):
        reference = getattr(entry, name)
        if isinstance(reference, str) and not re.fullmatch(r"[\w.]+:\w+", reference):
            refuse(f"`{name}` of `{entry.name}` is `{reference}`", 'code is named "module:function"')
    if isinstance(entry, AttentionBackend):
        can = entry.capabilities
        for axis, declared, known in (
            ("mask_terms", can.mask_terms, MASK_TERMS),
            ("bias_kinds", can.bias_kinds, BIAS_KINDS),
            ("bias_gradient", can.bias_gradient, BIAS_KINDS),
        ):
            for word in sorted(declared.difference(known)):
                refuse(f"`{entry.name}` declares `{word}` in `{axis}`, which does not exist", f"known: {', '.join(known)}")
