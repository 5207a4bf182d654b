"""The directory of a run while it trains: whether it is still there, and what could not be written."""

from __future__ import annotations

from pathlib import Path

from ..errors import Diagnostic, StoreError
from .callbacks import CallbackList
from .run_directory import identity


class RunOutput:
    """What every component that writes shares.

    Attributes:
        directory: The directory of the run.
        callbacks: Receive what could not be written.
        unsaved: Why the last checkpoint or model could not be written; None since a checkpoint was written.
        removed: Set once the directory was found removed or replaced. The run then stops.
    """

    def __init__(self, directory: Path, callbacks: CallbackList) -> None:
        self.directory, self.callbacks = directory, callbacks
        self.unsaved: StoreError | None = None
        self.removed: StoreError | None = None
        self._identity = identity(directory)

    def check(self) -> None:
        """Raises StoreError where the directory was removed or replaced since the run began."""
        if identity(self.directory) != self._identity:
            message = f"{self.directory} was removed or replaced while the run was working in it"
            self.removed = StoreError(Diagnostic("TFK081", message, "the run stops; nothing was written anywhere else"))
            raise self.removed

    def failed(self, reason: StoreError) -> None:
        """Note that a checkpoint or a model could not be written. Training continues, and tries again with the next one."""
        self.unsaved = reason
        if self.removed is None:  # otherwise it is reported when the run stops
            self.callbacks.notify(lambda callback: callback.trouble(reason.diagnostics))
