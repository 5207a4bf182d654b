"""How matplotlib is imported: it would read a `matplotlibrc` of the working directory, which a third party may have written."""

from __future__ import annotations

import os
import sys


def import_matplotlib() -> None:
    """Import matplotlib with its defaults and the settings of the user. Nothing is done if it was imported before."""
    if "matplotlib" in sys.modules:
        return
    here = os.getcwd()
    os.chdir(os.path.dirname(__file__))
    try:
        import matplotlib  # noqa: F401
    finally:
        os.chdir(here)
