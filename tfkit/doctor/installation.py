"""What is installed here: the processor, Python and the variables of torch, the packages of tfkit and its extras, and the
plugins."""

from __future__ import annotations

import os
import platform
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

from ..catalogue import LAZY, UNINSTALL_ONE, BrokenPlugin, Catalogue, load_catalogue
from ..distribution import install_line, installed, other_project, reinstall_line
from ..errors import InstallationWarning, PluginError
from ..slots.lazy import load
from ..view.matplotlib_import import import_matplotlib
from ..view.terminal import silent_libraries


@dataclass
class Findings:
    """Problems, each with its fix; and notes, which are no faults."""

    problems: list[dict[str, str]] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)

    def problem(self, what: str, fix: str) -> None:
        self.problems.append({"what": what, "fix": fix})

    def note(self, what: str, fix: str) -> None:
        self.notes.append({"what": what, "fix": fix})


def in_one_line(reason: BaseException) -> str:
    return " ".join(f"{type(reason).__name__}: {reason}".split())


INSTRUCTIONS = (
    "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8",
    "asimd", "bf16", "i8mm", "sve", "sve2",
)  # fmt: skip
"""The instruction sets for which torch or oneDNN have kernels, as Linux names them."""
VARIABLES = (
    "ATEN_CPU_CAPABILITY", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "MKL_ENABLE_INSTRUCTIONS", "MKL_NUM_THREADS",
    "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TRITON_INTERPRET",
    "TRITON_PTXAS_PATH",
)  # fmt: skip
DEVICE_ID = re.compile(r"(GPU|MIG)-[\w-]+")


def machine_here() -> dict[str, Any]:
    lines = _lines("/proc/cpuinfo")
    flags = set((_value(lines, "flags") or _value(lines, "Features")).split())
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _value(lines, "model name") or platform.processor() or platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "instructions": [name for name in INSTRUCTIONS if name in flags],
    }


def python_here() -> dict[str, Any]:
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "path": sys.executable or "unknown",
    }


def variables() -> dict[str, str]:
    """The variables that are set. Identifiers of devices are left out."""
    return {name: DEVICE_ID.sub(r"\1-...", os.environ[name]) for name in VARIABLES if name in os.environ}


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _value(lines: list[str], name: str) -> str:
    return next((line.partition(":")[2].strip() for line in lines if line.split(":")[0].strip() == name), "")


MODULES = {"pillow": "PIL", "pyyaml": "yaml"}
"""Packages whose module has another name."""
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[(?P<extras>[^]]*)\])?(?P<range>[^;]*)(;.*extra == [\"'](?P<extra>[\w.-]+)[\"'])?"
)
_TESTS = {
    ">=": lambda have, want: have >= want, "<=": lambda have, want: have <= want, "==": lambda have, want: have == want,
    "!=": lambda have, want: have != want, ">": lambda have, want: have > want, "<": lambda have, want: have < want,
}  # fmt: skip


def tfkit_version(findings: Findings) -> str | None:
    other = other_project()
    if other is not None:
        findings.problem(*other)
    try:
        return installed().version
    except PackageNotFoundError:
        findings.problem("tfkit is imported but not installed, so that no plugin is found", "`pip install .` in its directory")
        return None


def extras(findings: Findings) -> list[dict[str, Any]]:
    """The extras of tfkit with their packages. What tfkit itself needs is checked too."""
    try:
        written = installed().requires or []
    except PackageNotFoundError:
        return []
    by_extra: dict[str, list[dict[str, Any]]] = {}
    for requirement in written:
        match = _REQUIREMENT.match(requirement)
        if match is None or match["extras"]:  # an extra made of other extras
            continue
        extra = match["extra"] or ""
        needed = match["range"].strip()
        install = install_line(extra) if extra else f"pip install '{match['name']}{needed}'"
        package = _package(match["name"], needed, install, findings, optional=bool(extra))
        by_extra.setdefault(extra, []).append(package)
    return [
        {
            "name": extra,
            "installed": all(package["version"] is not None for package in packages),
            "install": install_line(extra),
            "packages": packages,
        }
        for extra, packages in sorted(by_extra.items())
        if extra
    ]


def _package(name: str, needed: str, install: str, findings: Findings, optional: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"name": name, "required": needed, "version": None}
    try:
        data["version"] = version(name)
    except PackageNotFoundError:
        if not optional:
            findings.problem(f"{name} is not installed, and tfkit needs it", install)
        return data
    if not satisfies(data["version"], needed):
        findings.problem(f"{name} {data['version']} is installed, and tfkit needs {needed}", install)
    if name != "torch":  # `torch_here` imports it
        try:
            with warnings.catch_warnings(), silent_libraries():
                warnings.simplefilter("ignore")
                if name == "matplotlib":
                    import_matplotlib()
                import_module(MODULES.get(name.lower(), name.replace("-", "_")))
        except (Exception, SystemExit) as reason:  # an import may raise anything
            if getattr(reason, "name", "") == "torch":  # a problem of its own
                return data
            fix = f"pip install --force-reinstall --no-deps {name}"
            findings.problem(f"{name} {data['version']} is installed and cannot be imported: {in_one_line(reason)}", fix)
    return data


def satisfies(have: str, needed: str) -> bool:
    """Whether a version lies in a range such as `>=8,<9.2`. Only the numbers of a release are compared."""
    for part in filter(None, needed.replace(" ", "").split(",")):
        match = re.match(r"(>=|<=|==|!=|>|<)([0-9.]+)$", part)
        if match and not _TESTS[match[1]](_numbers(have), _numbers(match[2])):
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    match = re.match(r"[0-9]+(\.[0-9]+)*", text)
    numbers = [int(number) for number in match[0].split(".")] if match else [0]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


GROUPS = ("tfkit.commands", "tfkit.functions", "tfkit.checks")
"""The other entry-point groups."""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


def catalogue_here(findings: Findings) -> Catalogue:
    """All entries, or the built-in ones if the plugins contradict each other. A broken plugin is a problem."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InstallationWarning)  # they are problems here
            catalogue = load_catalogue()
    except PluginError as error:
        for diagnostic in error.diagnostics:
            findings.problem(f"no model can be built: {diagnostic.message}", diagnostic.fix)
        return load_catalogue(point for point in entry_points(group="tfkit") if point.name == "builtin")
    for clash in catalogue.disabled:
        findings.problem(str(clash), UNINSTALL_ONE)
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
                findings.note(f"{what}: {missing} is not installed", f"install the package that provides `{missing}`")
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
    return f"{reinstall_line(plugin.distribution)}, or remove the plugin: {remove}"


def _references(catalogue: Catalogue) -> Iterator[tuple[str, str, str]]:
    """The code that entries of plugins name: entry, distribution and reference."""
    for table in catalogue.registered.values():
        for name, registration in table.items():
            if registration.plugin == "builtin":
                continue
            for entry_field in fields(registration.entry):
                reference = getattr(registration.entry, entry_field.name)
                if entry_field.name in LAZY and isinstance(reference, str):
                    yield name, registration.distribution, reference


def _try(point: EntryPoint, findings: Findings) -> None:
    owner = point.dist.name if point.dist else point.name
    try:
        point.load()
    except (Exception, SystemExit) as reason:  # an import of a plugin may raise anything
        what = f"`{point.name}` of {owner} ({point.group}) cannot be imported: {in_one_line(reason)}"
        findings.problem(what, reinstall_line(owner))
