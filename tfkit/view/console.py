"""Rich on a standard stream, under the rules of `tfkit.view.terminal`: text is escaped before it is styled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from .terminal import escaped, write_drawn


class EscapingConsole(Console):
    """A console for a standard stream, without Rich's own markup in text."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(file=cast(TextIO, _Drawn(stream)), highlight=False, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape the text. Live panels and progress bars are rendered here too."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escaped(segment.text), segment.style)


class _Drawn:
    """The stream that Rich writes to, without escaping: its control sequences are colours and cursor movements."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        write_drawn(self.stream, text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
