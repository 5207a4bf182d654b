"""A correct attention kernel in stages, each of which a mutant may replace."""

from __future__ import annotations

from tfkit.plugin import AttentionBackend, Capabilities


def entry_of(name: str, summary: str, capabilities: Capabilities) -> AttentionBackend:
    """The entry of a backend that is not found by name; its function is passed separately."""
    return AttentionBackend(name=name, summary=summary, attend=f"{__name__}.kernel:attend", capabilities=capabilities)
