"""The packages that tfkit needs, and those that its extras add: which are here, which can be imported."""

from __future__ import annotations

import re
import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from ..view.matplotlib_import import import_matplotlib
from .finding import Findings, in_one_line

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
    try:
        return version("tfkit")
    except PackageNotFoundError:
        findings.problem("tfkit is imported but not installed, so that no plugin is found", "pip install . in its directory")
        return None


def extras(findings: Findings) -> list[dict[str, Any]]:
    """The extras of tfkit with their packages. What tfkit itself needs is checked too."""
    try:
        written = requires("tfkit") or []
    except PackageNotFoundError:
        return []
    by_extra: dict[str, list[dict[str, Any]]] = {}
    for each in written:
        found = _REQUIREMENT.match(each)
        if found is None or found["extras"]:  # an extra made of other extras
            continue
        extra = found["extra"] or ""
        install = f"pip install 'tfkit[{extra}]'" if extra else "pip install --upgrade tfkit"
        package = _package(found["name"], found["range"].strip(), install, findings, optional=bool(extra))
        by_extra.setdefault(extra, []).append(package)
    return [
        {
            "name": extra,
            "installed": all(package["version"] is not None for package in packages),
            "install": f"pip install 'tfkit[{extra}]'",
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
            with warnings.catch_warnings():
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
        found = re.match(r"(>=|<=|==|!=|>|<)([0-9.]+)$", part)
        if found and not _TESTS[found[1]](_numbers(have), _numbers(found[2])):
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"[0-9]+(\.[0-9]+)*", text)
    numbers = [int(number) for number in found[0].split(".")] if found else [0]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
