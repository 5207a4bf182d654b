"""The text output of `tfkit plugins`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

GAP = 2
"""Spaces between two columns."""
WIDEST = 40
"""The largest width of the column of one backend."""


def plugins_text(data: Mapping[str, Any]) -> list[RenderableType]:
    """A table of the entries, slot by slot, then the plugins that could not be loaded."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for name in ("slot", "name", "summary", "from"):
        table.add_column(name, overflow="fold", no_wrap=name in ("slot", "name"))
    slot = None
    for entry in data["entries"]:
        first = entry["slot"] if entry["slot"] != slot else ""
        slot = entry["slot"]
        source = f"{entry['distribution']} {entry['version']}".strip()
        table.add_row(Text(first, "bold"), Text(entry["name"], "cyan"), Text(entry["summary"]), Text(source, "dim"))
    parts: list[RenderableType] = [table]
    for plugin in data["broken"]:
        line = Text("broken: ", "bold red").append(f"{plugin['plugin']} of {plugin['distribution']}: {plugin['reason']}", "")
        parts += ["", line]
    for clash in data["disabled"]:
        same = f"{clash['slot']} {clash['name']} of {' and '.join(clash['distributions'])}: the same name"
        parts += ["", Text("disabled: ", "bold red").append(same, "")]
    if data["certificates"]:
        parts += ["", Text("certificates: what the authors of plugins state; `tfkit conformance` finds out", "bold")]
        parts += [_certificate(certificate) for certificate in data["certificates"]]
    return parts


def _certificate(certificate: Mapping[str, Any]) -> Text:
    """One line: the part, what was evaluated, and whether that holds for what is installed here."""
    state = certificate["state"]
    line = Text(f"{certificate.get('name') or certificate['file']}", "cyan")
    if state == "unusable":
        return line.append(f"  {state}: {certificate['reason']}", "yellow")
    where = certificate["environment"].get("instruction set") or certificate["environment"].get("gpu", "")
    line.append(
        f"  {certificate['profile']}, {certificate['device']} {where}, {', '.join(certificate['dtypes'])}  ", "not bold default"
    )
    line.append(state, "green" if state == "valid" else "yellow")
    differs = [*certificate["changed"], *certificate["elsewhere"]]
    return line.append(f": {'; '.join(differs)}" if differs else "", "not bold default")


@dataclass(frozen=True)
class BackendsText:
    """The declared capabilities of attention backends. A backend refuses an axis that it does not declare.

    A column for each of the `names`, a row for each axis. If the columns do not fit into one table without breaking words,
    there are several tables.
    """

    names: list[str]
    rows: list[list[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        axes = max(len(axis) for axis, *_ in self.rows)
        for number, group in enumerate(self._groups(options.max_width - axes)):
            if number:
                yield ""
            yield self._table(group, axes, options.max_width)

    def _groups(self, width: int) -> list[list[int]]:
        """The columns of each table: as many as fit, at least one."""
        groups: list[list[int]] = []
        left = 0
        for column in range(len(self.names)):
            needed = self._narrowest(column) + GAP
            if not groups or needed > left:
                groups.append([])
                left = width
            groups[-1].append(column)
            left -= needed
        return groups

    def _narrowest(self, column: int) -> int:
        """The longest word of a column."""
        texts = [self.names[column], *(row[column + 1] for row in self.rows)]
        return max(len(word) for text in texts for word in text.split())

    def _table(self, group: list[int], axes: int, width: int) -> Table:
        table = Table(box=None, padding=(0, GAP, 0, 0), show_edge=False, pad_edge=False)
        table.add_column("", no_wrap=True, width=axes)
        narrowest = [self._narrowest(column) for column in group]
        more = max(0, width - axes - sum(narrowest) - GAP * len(group)) // len(group)
        for column, least in zip(group, narrowest, strict=True):
            table.add_column(self.names[column], overflow="fold", width=min(least + more, WIDEST))
        for axis, *declared in self.rows:
            words = [declared[column] for column in group]
            table.add_row(Text(axis, "bold"), *[Text(word, "dim" if word == "no" else "") for word in words])
        return table
