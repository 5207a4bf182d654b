"""The exceptions that tfkit raises on purpose."""

from __future__ import annotations

from collections.abc import Iterable

from .diagnostic import Diagnostic


class TfkitError(Exception):
    """Base of every error that tfkit raises on purpose. `diagnostics` is never empty. `reported_by_other_rank`: another
    process of the same run raises it too and prints it."""

    reported_by_other_rank = False

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        super().__init__("\n".join(map(str, self.diagnostics)))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.diagnostics,))


class SpecError(TfkitError):
    """What the user wrote is not a spec."""


class PluginError(TfkitError):
    """A plugin broke the contract of its slot."""


class BackendRefused(TfkitError):
    """No allowed attention backend can do what a site asks."""


class InputError(TfkitError, ValueError):
    """A tensor or argument given to a built model is wrong."""


class BuildError(TfkitError):
    """A correct spec cannot be built here."""


class StoreError(TfkitError):
    """A saved model cannot be written or read."""


class TrainingError(TfkitError):
    """Training came to numbers that are none."""
