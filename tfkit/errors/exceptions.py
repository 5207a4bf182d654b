"""The exceptions that tfkit raises."""

from __future__ import annotations

from collections.abc import Iterable

from .diagnostic import Diagnostic


class TfkitError(Exception):
    """Base of every exception that tfkit raises.

    Args:
        diagnostics: the errors, at least one.

    The attribute `reported_by_other_rank` is set if another process of the same run prints the error.
    """

    reported_by_other_rank = False

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        super().__init__("\n".join(map(str, self.diagnostics)))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.diagnostics,))


class InstallationWarning(UserWarning):
    """Something that is installed is not used, or may be mixed with another project."""


class SpecError(TfkitError):
    """The spec, the recipe or an override is wrong.

    Args:
        diagnostics: the errors, at least one.
    """


class PluginError(TfkitError):
    """A plugin broke the contract of its slot.

    Args:
        diagnostics: the errors, at least one.
    """


class BackendRefused(TfkitError):
    """No requested attention backend can serve a site.

    Args:
        diagnostics: the errors, at least one.
    """


class InputError(TfkitError, ValueError):
    """A tensor or argument of a call is wrong.

    Args:
        diagnostics: the errors, at least one.
    """


class BuildError(TfkitError):
    """A correct spec cannot be built on this machine.

    Args:
        diagnostics: the errors, at least one.
    """


class StoreError(TfkitError):
    """A saved model cannot be written or read.

    Args:
        diagnostics: the errors, at least one.
    """


class TrainingError(TfkitError):
    """Training produced NaN or infinity.

    Args:
        diagnostics: the errors, at least one.
    """
