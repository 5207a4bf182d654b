"""The exceptions of tfkit. Each carries diagnostics with stable codes, which `tfkit explain` describes.

    TfkitError                 carries one or more diagnostics
    ├── SpecError              the spec, or a --set, is wrong: all its errors at once
    ├── PluginError            a plugin broke the contract of a slot
    ├── BackendRefused         no requested attention backend can serve a site: every reason, and the backends that can
    ├── InputError             a tensor or argument of a call is wrong (also a ValueError)
    ├── BuildError             a correct spec cannot be built here: too large, a part's build function failed
    ├── StoreError             a saved model cannot be written or read
    └── TrainingError          training with a correct recipe produced NaN or infinity

The text of a message may change between releases. A code and its meaning do not change (see `tfkit.errors.codes`).
"""

from .diagnostic import Diagnostic, Location
from .exceptions import (
    BackendRefused,
    BuildError,
    InputError,
    InstallationWarning,
    PluginError,
    SpecError,
    StoreError,
    TfkitError,
    TrainingError,
)

__all__ = [
    "BackendRefused",
    "BuildError",
    "Diagnostic",
    "InputError",
    "InstallationWarning",
    "Location",
    "PluginError",
    "SpecError",
    "StoreError",
    "TfkitError",
    "TrainingError",
]
