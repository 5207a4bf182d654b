"""The file in which `tfkit explain` finds the checks of this distribution."""

from pathlib import Path

FILE = Path(__file__).with_name("check_texts.json")
"""Written by `python -m tfkit_conformance.write_check_texts`."""
