"""The certificates that installed distributions ship: files `*.certificate.json` beside the module of their entry point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from itertools import islice

from ..catalogue import Catalogue
from ..errors import InputError
from .certificate import SUFFIX, Certificate, read_certificate
from .comparison import Comparison, compare_certificate
from .source import locate

MOST = 100
"""The largest number of certificates of one plugin that are read."""


@dataclass(frozen=True)
class InstalledCertificate:
    """A file that a distribution ships.

    Args:
        distribution: that ships it.
        file: its path.
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
    found = []
    listed = {name for name, *_ in catalogue.plugins} | {broken.plugin for broken in catalogue.broken}
    for point in entry_points(group="tfkit"):
        if point.name not in listed:
            continue
        distribution = point.dist.name if point.dist else point.name
        module = locate(point.module)
        if module is None or module.name != "__init__.py":  # a lone module has no directory of its own
            continue
        for file in islice(sorted(module.parent.glob(f"*{SUFFIX}")), MOST):
            try:
                certificate = read_certificate(file)
                comparison = compare_certificate(certificate, catalogue)
                if certificate.distribution != distribution:
                    other = f"distribution: {certificate.distribution or 'none'}, shipped by {distribution}"
                    comparison = replace(comparison, changed=(other, *comparison.changed))
            except InputError as error:
                found.append(InstalledCertificate(distribution, str(file), reason=error.diagnostics[0].message))
            else:
                found.append(InstalledCertificate(distribution, str(file), certificate, comparison))
    return sorted(found, key=lambda each: (each.distribution, each.file))
