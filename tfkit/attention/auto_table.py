"""The measured table that `auto` uses, as a file. `tfkit bench auto --json FILE` writes it.

    {"tfkit_auto": 1, "device": "cpu", "device_name": "...", "capability": null, "threads": 1, "versions": {"torch": "..."},
     "command": "...", "rows": {"sdpa": [{"dtypes": ["float32"], "lengths": [1, 45], "gradients": true, ...,
     "relative_time": 0.9}]}}

A row has the conditions of `AutoRow`; the file gives device, compute capability and hardware once for all rows. A plugin ships
such files as package data and lists them in its entry with `AutoTable`; `Catalogue.with_auto_table` adds a user's own file.
Other keys of the file document the measurement.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, overload

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from ..errors import Diagnostic, InputError, PluginError
from ..files import FileModel, parse_form, refusals
from ..slots.options import Options
from .capabilities import AttentionRequest, Names

FORM = 1
MOST_ROWS = 2_000
"""Each class of calls is compared with every row."""
LARGEST = 2**63 - 1
DTYPES = ("float64", "float32", "bfloat16", "float16")


def _ordered(limits: tuple[int, int | None]) -> tuple[int, int | None]:
    smallest, largest = limits
    if smallest < 1 or not smallest <= (largest or LARGEST) <= LARGEST or largest == 0:
        raise PydanticCustomError("range", "a smallest and a largest whole number from 1 are expected, or null for no largest")
    return limits


def _known(dtypes: frozenset[str]) -> frozenset[str]:
    if not dtypes or dtypes - set(DTYPES):
        raise PydanticCustomError("dtypes", "some of {known} are expected", {"known": ", ".join(DTYPES)})
    return dtypes


Bounds = Annotated[tuple[int, int | None], AfterValidator(_ordered)]


class AutoRow(Options):
    """A measured time of a backend for one class of calls. A condition that is None matches every call.

    Args:
        device: kind of device.
        capability: CUDA compute capability of the device it was measured on.
        dtypes: dtypes of the calls.
        lengths: smallest and largest max(Q, K), both included.
        head_dims: smallest and largest head dim D, both included.
        scores: smallest and largest number of scores B H Q K of a call, both included.
        gradients: calls with gradients.
        dropout: calls with dropout.
        causal: calls that are causal.
        masked: calls with mask terms other than causality.
        windowed: calls with a window.
        biased: calls with a bias.
        biases: kinds of the bias of the calls.
        bias_gradient: calls whose bias needs a gradient.
        decoding: calls with a single query.
        compiled: calls under torch.compile.
        relative_time: the time divided by that of `eager` for the same call.
        measured: the hardware and versions of the measurement.
        published: link to the source, if the figure is not tfkit's own.
        estimated: how the figure was estimated, if nobody has measured it.
    """

    device: str
    capability: tuple[int, int] | None = None
    dtypes: Annotated[Names, AfterValidator(_known)]
    lengths: Bounds = (1, None)
    head_dims: Bounds = (1, None)
    scores: Bounds = (1, None)
    gradients: bool | None = None
    dropout: bool | None = None
    causal: bool | None = None
    masked: bool | None = None
    windowed: bool | None = None
    biased: bool | None = None
    biases: Names | None = None
    bias_gradient: bool | None = None
    decoding: bool | None = None
    compiled: bool | None = None
    relative_time: Annotated[float, Field(gt=0)]
    measured: str = ""
    published: str = ""
    estimated: str = ""

    def covers(self, request: AttentionRequest) -> bool:
        """Whether the row covers a class of calls. Unknown lengths count as long, unknown numbers of scores as large, unknown
        gradients as needed, and an unknown head dim as any.

        Args:
            request: the requirements of the class.

        Returns:
            True if every condition of the row holds.
        """
        length = max(request.queries or 2**40, request.keys or 2**40)
        wanted = {
            "gradients": request.gradients is not False,
            "dropout": request.dropout,
            "causal": "causal" in request.mask_terms,
            "masked": bool(request.mask_terms - {"causal"}),
            "windowed": "window" in request.mask_terms,
            "biased": request.bias is not None,
            "bias_gradient": request.bias_gradient,
            "decoding": request.queries == 1,
            "compiled": request.compiled,
        }
        return (
            request.device in (None, self.device)
            and (self.capability is None or request.cuda_capability in (None, self.capability))
            and (request.dtype is None or request.dtype in self.dtypes)
            and (self.biases is None or request.bias in self.biases)
            and _within(length, self.lengths)
            and (request.head_dim is None or _within(request.head_dim, self.head_dims))
            and _within(request.scores or 2**60, self.scores)
            and all(getattr(self, name) in (None, value) for name, value in wanted.items())
        )


def _within(number: int, limits: tuple[int, int | None]) -> bool:
    return limits[0] <= number <= (limits[1] or number)


@dataclass(frozen=True)
class AutoTable(Sequence[AutoRow]):
    """The rows of one backend from tables of its plugin, read on first use.

    Args:
        package: the package that contains the files.
        files: names of the tables.
        backend: the backend's name in these tables.
        more: rows after those of the files.
    """

    package: str
    files: tuple[str, ...]
    backend: str
    more: tuple[AutoRow, ...] = ()

    @cached_property
    def rows(self) -> tuple[AutoRow, ...]:
        """All rows. Raises PluginError if a file is missing or invalid."""
        from importlib.resources import files

        rows: list[AutoRow] = []
        for file in self.files:
            where = f"{self.package}/{file}"
            try:
                table = parse_table(files(self.package).joinpath(file).read_text(encoding="utf-8"), where)
            except (OSError, ModuleNotFoundError) as reason:
                raise PluginError(Diagnostic("TFK062", f"{where} cannot be read: {reason}", "reinstall the plugin")) from None
            except InputError as error:
                raise PluginError(error.diagnostics) from None
            rows += table.get(self.backend, ())
        return (*rows, *self.more)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> AutoRow: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[AutoRow]: ...

    def __getitem__(self, index: int | slice) -> AutoRow | Sequence[AutoRow]:
        return self.rows[index]


class _Versions(FileModel):
    """The versions that a table was measured with. Those of other packages are not shown."""

    model_config = ConfigDict(extra="ignore")
    torch: str = ""


class _Table(FileModel):
    """A table file. Its other keys document the measurement."""

    model_config = ConfigDict(extra="ignore")
    device: str
    device_name: Annotated[str, Field(max_length=200)] = ""
    capability: list[int] | None = None
    threads: int | None = None
    versions: _Versions = _Versions()
    rows: dict[str, list[dict[str, Any]]]


def parse_table(text: str, where: str) -> dict[str, tuple[AutoRow, ...]]:
    """Parse a table of `auto`.

    Args:
        text: the content of the file.
        where: its name, for error messages.

    Returns:
        The rows by backend.

    Raises:
        InputError: the text is not a valid table.
    """

    def refuse(reason: str) -> InputError:
        return InputError(Diagnostic("TFK062", f"{where}: {reason}", "measure one: tfkit bench auto --json FILE"))

    try:
        data = parse_form(text, "tfkit_auto", FORM, "table of `auto`")
        table = _Table.model_validate(data)
    except ValidationError as error:
        raise refuse(refusals(error)[0]) from None
    except ValueError as reason:
        raise refuse(str(reason)) from None
    if (count := sum(map(len, table.rows.values()))) > MOST_ROWS:
        raise refuse(f"it has {count:,} rows, and at most {MOST_ROWS:,} are read")
    shared = {"device": table.device, "capability": table.capability, "measured": measured_on(data)}
    rows_by_backend: dict[str, tuple[AutoRow, ...]] = {}
    for backend, rows in table.rows.items():
        try:
            rows_by_backend[backend] = tuple(
                AutoRow.model_validate_json(json.dumps({**row, **shared}, allow_nan=False)) for row in rows
            )
        except ValidationError as error:
            raise refuse(f"the rows of `{backend}`: {refusals(error)[0]}") from None
    return rows_by_backend


def measured_on(data: dict[str, Any]) -> str:
    """The hardware and versions of a measurement: `NVIDIA H100 80GB HBM3, torch 2.11.0`; for a CPU with the threads.

    Args:
        data: the content of a table file.

    Returns:
        One line of text.
    """
    torch = data.get("versions", {}).get("torch")
    words = [data.get("device_name", "an unnamed device")]
    if data.get("device") == "cpu" and data.get("threads") is not None:
        words.append(f"{data['threads']} thread{'s' if data['threads'] != 1 else ''}")
    return ", ".join([*words, *([f"torch {torch}"] if torch else [])])
