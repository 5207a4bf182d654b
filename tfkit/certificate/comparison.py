"""A certificate against what is installed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..catalogue import Catalogue
from ..errors import Diagnostic, InputError
from .certificate import Certificate, subject_of
from .declaration import flattened
from .environment import NOTED, environment

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
        certificate: the certificate.
        catalogue: the installed parts.
        suite: the version of the installed suite; None if it is not installed.

    Returns:
        What differs.

    Raises:
        InputError: TFK098, the part is not installed.
    """
    here = _installed(certificate, catalogue)
    changed = []
    if certificate.distribution != here["distribution"]:
        changed.append(f"distribution: {certificate.distribution or 'none'}, installed {here['distribution'] or 'none'}")
    changed += _declared(certificate.declaration, here["declaration"])
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
