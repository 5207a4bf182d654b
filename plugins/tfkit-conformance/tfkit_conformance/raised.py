"""Describes an exception of a part under test: its type, its message and the line of the part's own code.

    RuntimeError: Expected size 8 but got 5 (acme/flash.py:42)

That line is the innermost one in a module that an installed plugin names as its entry point; where there is none, the innermost
one outside of tfkit, torch and the standard library. It lies below the function that catches: a caller's own frames, such as
those of a test runner, are no part of a traceback there.
"""

from __future__ import annotations

import re
import sys
import traceback
from functools import cache
from importlib.metadata import entry_points
from pathlib import PurePath
from types import FrameType

import torch

OURS = frozenset({"tfkit", "tfkit_conformance"})
NOT_THE_PARTS = OURS | {"torch", "beartype", "jaxtyping"} | sys.stdlib_module_names
LONGEST = 300

Line = tuple[FrameType, int]


def format_exception(reason: BaseException) -> str:
    """The exception on one line, its message cut, and where the part raised it."""
    text = " ".join(str(reason).split())[:LONGEST]
    named = f"{type(reason).__name__}: {text}" if text else type(reason).__name__
    frames = _own(reason)
    return f"{named} ({_place(*frames[-1])})" if frames else named


def call_of(reason: BaseException) -> str:
    """The function of the part that tfkit had called, such as `Rotary.rotate`; nothing where none of its code ran."""
    frames = _own(reason)
    if not frames:
        return ""
    frame = frames[0][0]
    owner = f"{type(frame.f_locals['self']).__name__}." if "self" in frame.f_locals else ""
    return f"{owner}{frame.f_code.co_name}"


def _own(reason: BaseException) -> list[Line]:
    """The lines of the part's own code, the outermost first."""
    lines = [line for line in traceback.walk_tb(reason.__traceback__) if _root(line[0]) not in NOT_THE_PARTS]
    lines = [line for line in lines if not line[0].f_code.co_filename.startswith("<")]
    roots = plugin_roots()
    of_plugins = [line for line in lines if _root(line[0]) in roots] or lines[-1:]
    return [line for line in lines if of_plugins and _root(line[0]) == _root(of_plugins[-1][0])]


@cache
def plugin_roots() -> frozenset[str]:
    """The packages of the installed plugins, tfkit's own left out."""
    return frozenset(point.module.partition(".")[0] for point in entry_points(group="tfkit")) - OURS


def _root(frame: FrameType) -> str:
    """The package that a frame's code belongs to."""
    return str(frame.f_globals.get("__name__") or "tfkit").partition(".")[0]


def _place(frame: FrameType, line: int) -> str:
    """The file, from its package on, and the line."""
    file = PurePath(frame.f_code.co_filename)
    depth = str(frame.f_globals["__name__"]).count(".") + 1 + (file.stem == "__init__")
    return f"{'/'.join(file.parts[-depth:])}:{line}"


WORDS = re.compile(
    r"can(no|')t allocate memory|not enough memory|out of memory|_ALLOC_FAILED|Storage size calculation overflowed",
    re.IGNORECASE,
)
WHERE_IN_TORCH = re.compile(r"^\[enforce fail at [^]]*\] [^.]*\. |\. Error code \d+ .*$")
FIX = "choose shorter --lengths, or fewer sites (--set a smaller num_layers)"


def no_room(reason: BaseException) -> str:
    """Why a run did not fit, and the fix; "" if the exception is about something else."""
    message = allocator_message(reason)
    return f"not enough memory: {message}; {FIX}" if message else ""


def allocator_message(reason: BaseException) -> str:
    """The message of the allocator on one line if the exception or its cause is about memory, else ""."""
    if isinstance(reason, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(reason, (RuntimeError, OSError)) and WORDS.search(str(reason))
    ):
        first = next(iter(str(reason).strip().splitlines()), type(reason).__name__)
        return WHERE_IN_TORCH.sub("", first)[:200]
    return allocator_message(reason.__cause__) if reason.__cause__ else ""
