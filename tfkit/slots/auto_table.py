"""The measured table that `auto` goes by, as a file: what `tfkit bench auto --json FILE` writes.

    {"tfkit_auto": 1, "device": "cpu", "device_name": "...", "capability": null, "threads": 1, "versions": {"torch": "..."},
     "command": "...", "rows": {"sdpa": [{"dtypes": ["float32"], "lengths": [1, 45], "gradients": true, ...,
     "relative_time": 0.9}]}}

A row's conditions are those of `AutoRow`; device, compute capability and what it was measured on are said once, above. A plugin
ships such files as package data and names them in its entry with `AutoTable`; a user's own file is given to a catalogue
(`Catalogue.with_auto_table`). Other keys of the file tell people how it was made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

from pydantic import ValidationError

from ..errors import Fault, InputError, PluginError
from .attention import AutoRow

FORM = 1


@dataclass(frozen=True)
class AutoTable(Sequence[AutoRow]):
    """The rows of one backend in tables that ship with its plugin: `files` of the package, then `more`. Nothing is read before
    a row is asked for."""

    package: str
    files: tuple[str, ...]
    backend: str
    more: tuple[AutoRow, ...] = ()

    @cached_property
    def rows(self) -> tuple[AutoRow, ...]:
        """Raises PluginError where a file is not there or is no table."""
        from importlib.resources import files

        found: list[AutoRow] = []
        for file in self.files:
            where = f"{self.package}/{file}"
            try:
                table = parse_table(files(self.package).joinpath(file).read_text(encoding="utf-8"), where)
            except (OSError, ModuleNotFoundError) as reason:
                raise PluginError(Fault("TFK062", f"{where} cannot be read: {reason}", "install the plugin anew")) from None
            except InputError as error:
                raise PluginError(error.faults) from None
            found += table.get(self.backend, ())
        return (*found, *self.more)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> AutoRow: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[AutoRow]: ...

    def __getitem__(self, index: int | slice) -> AutoRow | Sequence[AutoRow]:
        return self.rows[index]


def parse_table(text: str, where: str) -> dict[str, tuple[AutoRow, ...]]:
    """The rows of a table by backend. Raises InputError where the text is none; `where` names it."""

    def refuse(reason: str) -> InputError:
        return InputError(Fault("TFK062", f"{where}: {reason}", "measure one: tfkit bench auto --json FILE"))

    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as reason:
        raise refuse(f"this is no JSON: {reason}") from None
    if not isinstance(data, dict) or not isinstance(data.get("rows"), dict):
        raise refuse("this is no table of `auto`: it has no `rows` by backend")
    if data.get("tfkit_auto") != FORM:
        raise refuse(f"its form is {data.get('tfkit_auto')}, this tfkit reads {FORM}")
    shared = {"device": data.get("device"), "capability": data.get("capability"), "measured": measured_on(data)}
    found: dict[str, tuple[AutoRow, ...]] = {}
    for backend, rows in data["rows"].items():
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise refuse(f"the rows of `{backend}` are no list of objects")
        try:
            found[backend] = tuple(AutoRow.model_validate_json(json.dumps({**row, **shared})) for row in rows)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "a row"
            raise refuse(f"the rows of `{backend}`: {place}: {first['msg']}") from None
    return found


def measured_on(data: dict[str, Any]) -> str:
    """`NVIDIA H100 80GB HBM3, torch 2.11.0`, with threads on a CPU."""
    versions = data.get("versions")
    torch = versions.get("torch") if isinstance(versions, dict) else None
    words = [str(data.get("device_name", "an unnamed device"))]
    if data.get("device") == "cpu" and isinstance(data.get("threads"), int):
        words.append(f"{data['threads']} thread{'s' if data['threads'] != 1 else ''}")
    return ", ".join([*words, *([f"torch {torch}"] if torch else [])])
