"""What can go wrong, as one tree; every fault has a stable code that `tfkit explain` knows.

    TfkitError                 carries one or more faults
    ├── SpecError              the spec, or a --set, is wrong: all its faults at once
    ├── PluginError            a plugin broke the contract of a slot
    ├── BackendRefused         an attention backend cannot do what a site asks: every reason, and who could
    ├── InputError             a tensor or argument given to a built model is wrong (also a ValueError)
    ├── BuildError             a correct spec cannot be built here: too large, a part's build function failed
    ├── StoreError             a saved model cannot be written or read
    └── TrainingError          a correct recipe came to numbers that are none

The text of a message may change between releases; its code and its meaning do not (see `tfkit.errors.codes`).
"""

from .diagnostic import Diagnostic, Location
from .exceptions import BackendRefused, BuildError, InputError, PluginError, SpecError, StoreError, TfkitError, TrainingError

__all__ = [
    "BackendRefused",
    "BuildError",
    "Diagnostic",
    "InputError",
    "Location",
    "PluginError",
    "SpecError",
    "StoreError",
    "TfkitError",
    "TrainingError",
]
