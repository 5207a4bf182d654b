"""A certificate against what is installed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from itertools import islice
from typing import Any, Literal

from ..catalogue import Catalogue
from ..distribution import NAME, OTHER
from ..errors import Diagnostic, InputError
from .certificate import SUFFIX, Certificate, read_certificate, subject_of
from .part_identity import NOTED, environment, flattened, locate

State = Literal["valid", "outdated", "made elsewhere"]


@dataclass(frozen=True)
class Comparison:
    """What differs between a certificate and the part that is installed here.

    Args:
        changed: in the declaration, the source or the suite. The certificate is about another part.
        elsewhere: in versions or the machine. The certificate is about this part, but not about here.
    """

    changed: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """Whether the certificate holds here."""
        return "outdated" if self.changed else "made elsewhere" if self.elsewhere else "valid"


def compare_certificate(certificate: Certificate, catalogue: Catalogue, suite: int | None = None) -> Comparison:
    """Compare a certificate with the part that is installed.

    Args:
        catalogue: the installed parts.
        suite: the version of the installed suite; None if it is not installed.

    Returns:
        What differs.

    Raises:
        InputError: TFK098, the part is not installed.
    """
    here = _installed(certificate, catalogue)
    changed = []
    recorded = NAME if certificate.distribution == OTHER else certificate.distribution
    if recorded != here["distribution"]:
        changed.append(f"distribution: {certificate.distribution or 'none'}, installed {here['distribution'] or 'none'}")
    changed += _declared(certificate.declaration, here["declaration"])
    lacking = certificate.options.keys() - (here["declaration"].get("options") or {}).keys()
    changed += [f"options: there is no `{name}`" for name in sorted(lacking)]
    changed += _modules(certificate.source, here["source"])
    if suite is not None and certificate.suite != suite:
        changed.append(f"suite: {certificate.suite}, installed {suite}")
    now = environment(certificate.device, here["distribution"])
    elsewhere = [
        f"{name}: {certificate.environment.get(name) or 'none'}, here {now.get(name) or 'none'}"
        for name in sorted(certificate.environment.keys() | now.keys())
        if name not in NOTED and certificate.environment.get(name) != now.get(name)
    ]
    return Comparison(tuple(changed), tuple(elsewhere))


def _installed(certificate: Certificate, catalogue: Catalogue) -> dict[str, Any]:
    if certificate.function is None:
        return subject_of(certificate.slot, certificate.name, catalogue)
    if not all(part.isidentifier() for part in certificate.name.partition(":")[0].split(".")):
        raise InputError(Diagnostic("TFK098", f"`{certificate.name[:80]}` is not MODULE:NAME", "the certificate was altered"))
    return {**subject_of("backend", certificate.name, catalogue), "declaration": certificate.function.model_dump()}


def _declared(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    before, after = dict(flattened(then)), dict(flattened(now))
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            yield f"declaration: {path}: {_word(before.get(path))}, installed {_word(after.get(path))}"


def _modules(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for module in sorted(then.keys() | now.keys()):
        if then.get(module) != now.get(module):
            what = "new" if module not in then else "gone" if module not in now else "changed"
            yield f"source: {module} is {what}"


def _word(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return (text if len(text) <= 120 else f"{text[:117]}...") if value not in (None, [], {}) else "none"


MOST_CERTIFICATES = 100
"""The largest number of certificates of one plugin that are read."""


@dataclass(frozen=True)
class InstalledCertificate:
    """A file that a distribution ships.

    Args:
        distribution: that ships it.
        certificate: its content; None if it cannot be used.
        comparison: with what is installed; None if it cannot be used.
        reason: why it cannot be used.
    """

    distribution: str
    file: str
    certificate: Certificate | None = None
    comparison: Comparison | None = None
    reason: str = ""


def installed_certificates(catalogue: Catalogue) -> list[InstalledCertificate]:
    """Find the certificates of all plugins, and compare each with what is installed.

    Args:
        catalogue: the installed parts.

    Returns:
        The certificates, by distribution and file.
    """
    installed = []
    listed = {name for name, *_ in catalogue.plugins} | {broken.plugin for broken in catalogue.broken}
    for point in entry_points(group="tfkit"):
        if point.name not in listed:
            continue
        distribution = point.dist.name if point.dist else point.name
        module = locate(point.module)
        if module is None or module.name != "__init__.py":  # a lone module has no directory of its own
            continue
        for file in islice(sorted(module.parent.glob(f"*{SUFFIX}")), MOST_CERTIFICATES):
            try:
                certificate = read_certificate(file)
                comparison = compare_certificate(certificate, catalogue)
                if certificate.distribution != distribution:
                    other = f"distribution: {certificate.distribution or 'none'}, shipped by {distribution}"
                    comparison = replace(comparison, changed=(other, *comparison.changed))
            except InputError as error:
                installed.append(InstalledCertificate(distribution, str(file), reason=error.diagnostics[0].message))
            else:
                installed.append(InstalledCertificate(distribution, str(file), certificate, comparison))
    return sorted(installed, key=lambda entry: (entry.distribution, entry.file))
