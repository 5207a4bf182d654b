"""The data that `tfkit plugins --json` prints.

plugins     name, distribution, version
entries     slot, name, summary, reference (a link or null), plugin, distribution, version
broken      plugin, distribution, reason: plugins that failed to import; an error only if a spec names one of their parts
disabled    slot, name, distributions: names that two plugins register
certificates  distribution, file, slot, name, profile, device, dtypes, suite, environment (versions, machine, instruction set),
            state (valid, outdated, made elsewhere, unusable), changed and elsewhere (lists of what differs), reason (why it is
            unusable): the certificates that plugins ship, compared with what is installed
backends    with --backends: one object for each, its name and its declared capabilities
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..attention.backend import AttentionBackend
from ..attention.capabilities import Capabilities, Device, Range
from ..catalogue import Catalogue
from ..certificate import InstalledCertificate, installed_certificates


def plugins_data(catalogue: Catalogue) -> dict[str, Any]:
    versions = {distribution: version for _, distribution, version in catalogue.plugins}
    return {
        "plugins": [dict(zip(("name", "distribution", "version"), plugin, strict=True)) for plugin in catalogue.plugins],
        "entries": [
            {
                "slot": slot,
                "name": name,
                "summary": registration.entry.summary,
                "reference": registration.entry.reference or None,
                "plugin": registration.plugin,
                "distribution": registration.distribution,
                "version": versions.get(registration.distribution, ""),
            }
            for slot in catalogue.registered
            for name, registration in sorted(catalogue.registered[slot].items())
        ],
        "broken": [
            {"plugin": plugin.plugin, "distribution": plugin.distribution, "reason": plugin.reason}
            for plugin in catalogue.broken
        ],
        "disabled": [
            {"slot": clash.slot, "name": clash.name, "distributions": list(clash.distributions)} for clash in catalogue.disabled
        ],
        "certificates": [_certificate(installed) for installed in installed_certificates(catalogue)],
    }


def _certificate(installed: InstalledCertificate) -> dict[str, Any]:
    data: dict[str, Any] = {
        "distribution": installed.distribution,
        "file": installed.file,
        "state": "unusable",
        "reason": installed.reason,
    }
    if installed.certificate is not None and installed.comparison is not None:
        names = ("slot", "name", "profile", "device", "dtypes", "suite", "environment")
        data |= {name: getattr(installed.certificate, name) for name in names}
        data |= {"state": installed.comparison.state, "changed": list(installed.comparison.changed)}
        data |= {"elsewhere": list(installed.comparison.elsewhere)}
    return data


def backends_data(catalogue: Catalogue) -> list[dict[str, Any]]:
    """Every attention backend with its declared capabilities."""
    return [{"name": entry.name, **_jsonable(entry.capabilities)} for entry in catalogue.entries("backend")]


def _jsonable(capabilities: Capabilities) -> dict[str, Any]:
    dumped = capabilities.model_dump(mode="json")
    return {
        name: sorted(value) if isinstance(getattr(capabilities, name), frozenset) else value for name, value in dumped.items()
    }


DESCRIBED: dict[str, Callable[[Any], str]] = {
    "devices": lambda devices: ", ".join(map(_device, devices)) or "no",
    "numerics": lambda numerics: (
        f"rounds {', '.join(name for name, value in numerics if value == 'storage') or 'nothing'}"
        + ("; TF32 where torch allows it" if numerics.tf32 else "")
        + (f"; zeros for NaN on {', '.join(sorted(numerics.nan_as_zero))}" if numerics.nan_as_zero else "")
    ),
}
"""The text of capabilities that are not names."""


def support_table(catalogue: Catalogue) -> tuple[list[str], list[list[str]]]:
    """The names of the backends, and for each axis of the contract its name and the declarations of all backends."""
    entries: list[AttentionBackend] = catalogue.entries("backend")
    rows = []
    for name in Capabilities.model_fields:
        described = DESCRIBED.get(name, _declared)
        rows.append([name.replace("_", " "), *(described(getattr(entry.capabilities, name)) for entry in entries)])
    return [entry.name for entry in entries], rows


def _declared(value: Any) -> str:
    if isinstance(value, frozenset):
        return ", ".join(sorted(value)) or "no"
    if value is None or value is False or value == "none":
        return "no"
    if value == Range():
        return "any"
    return "yes" if value is True else str(value)


def _device(device: Device) -> str:
    capability = device.minimum_capability
    return device.kind + (f" from sm_{capability[0]}{capability[1]}" if capability else "")
