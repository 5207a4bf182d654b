"""The stable codes of tfkit's errors: a rule of the language or of a contract each, with an example and what to do.

    000-009  reading a spec          040-049  the model as a whole      070-079  calling a model
    010-019  keys and names          050-059  plugins                   080-089  saved models
    020-039  values                  060-069  attention backends        090-099  the command line
    100-109  text and tokenisers       110-119  training

A code keeps its meaning for ever; the text of a message does not.
"""

from __future__ import annotations

from .code import Code
from .running import RUNNING
from .text import TEXT
from .written import WRITTEN

__all__ = ["CODES", "Code"]

CODES: dict[str, Code] = {**WRITTEN, **RUNNING, **TEXT}
