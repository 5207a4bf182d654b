"""Starters: complete plugins with one part, as files. `tfkit new` writes them under a name of the user's choice.

The directory `files` holds a plugin `acme.part` for each slot of `STARTERS`, and in `every` what all of them share. The backend
is that of plugins/tfkit-example-backend and the sub-layer that of docs/examples/acme-conv; a test compares every word.
"""

from .starter import STARTERS, Name, Starter, check_name, starter_files, write_starter

__all__ = ["STARTERS", "Name", "Starter", "check_name", "starter_files", "write_starter"]
