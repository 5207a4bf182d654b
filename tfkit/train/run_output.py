"""The directory of a run while it trains: whether it still exists, and which writes failed."""

from __future__ import annotations

from pathlib import Path

from ..errors import Diagnostic, StoreError
from .callbacks import CallbackList
from .run_directory import identity


class RunOutput:
    """The state that all components which write share.

    Attributes:
        directory: The directory of the run.
        callbacks: Receive the errors of failed writes.
        unsaved: The error of the last failed checkpoint or model; None after a checkpoint was written.
        removed: The error if the directory was removed or replaced. The run then stops.
    """

    def __init__(self, directory: Path, callbacks: CallbackList) -> None:
        self.directory, self.callbacks = directory, callbacks
        self.unsaved: StoreError | None = None
        self.removed: StoreError | None = None
        self._identity = identity(directory)

    def check(self) -> None:
        """Raises StoreError if the directory was removed or replaced since the start of the run."""
        if identity(self.directory) != self._identity:
            message = f"{self.directory} was removed or replaced while the run was working in it"
            self.removed = StoreError(Diagnostic("TFK081", message, "the run stops; nothing was written in another place"))
            raise self.removed

    def failed(self, reason: StoreError) -> None:
        """Record that a checkpoint or a model could not be written. Training continues, and the next one is tried."""
        self.unsaved = reason
        if self.removed is None:  # otherwise it is reported when the run stops
            self.callbacks.notify(lambda callback: callback.on_warning(reason.diagnostics))
