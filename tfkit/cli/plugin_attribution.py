"""Attributes an exception to a plugin or to tfkit."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from importlib.metadata import entry_points

OURS = __name__.partition(".")[0]


def culprit(bug: BaseException) -> str | None:
    """The innermost plugin in the traceback: distribution, module and line; None if there is none."""
    frames = ((str(frame.f_globals.get("__name__", "")), line) for frame, line in traceback.walk_tb(bug.__traceback__))
    return innermost_plugin(frames)


def innermost_plugin(frames: Iterable[tuple[str, int]]) -> str | None:
    """The innermost plugin of a traceback.

    Args:
        frames: module and line of each frame, the outermost first.

    Returns:
        Distribution, module and line; None if no frame belongs to a plugin.
    """
    owners = {
        point.module.partition(".")[0]: point.dist.name if point.dist else point.name for point in entry_points(group=OURS)
    }
    owners.pop(OURS, None)
    plugin = None
    for module, line in frames:
        owner = owners.get(module.partition(".")[0])
        if owner is not None:
            plugin = f"{owner} ({module}, line {line})"
    return plugin
