"""The exceptions that tfkit raises on purpose."""

from __future__ import annotations

from collections.abc import Iterable

from .diagnostic import Fault


class TfkitError(Exception):
    """Base of every error that tfkit raises on purpose. `faults` is never empty; `elsewhere` says that another process, with
    which this one trains, raises it too and tells it."""

    elsewhere = False

    def __init__(self, faults: Fault | Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.faults,))


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
