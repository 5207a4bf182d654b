"""One line of the table of proofs, and the verdict over all of them.

FAILED       some property is broken: exit code 1
INCOMPLETE   nothing is broken, but something was not evaluated: a device that is not here, a call that does not fit in memory,
             a node that no reference checks (a part of a plugin that brings no formula), or the run has not finished: exit
             code 3
VERIFIED     everything that applies to this model was evaluated and holds: exit code 0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..differences import at_element, differing, error_ratio, first_of, worst_of
from ..finding import Violation

Status = Literal["passed", "failed", "refused", "inconclusive", "not applicable", "not run", "reported", "not checked"]


class Outcome(Exception):
    """Ends a check with another status, or with a message. `worst` is the largest error over its bound."""

    status: Status

    def __init__(self, message: str, worst: float | None = None) -> None:
        super().__init__(message)
        self.worst = worst


class NotApplicable(Outcome):
    """The property does not apply to the model."""

    status = "not applicable"


class Refused(Outcome):
    """The declaration of the backend refuses the call."""

    status = "refused"


class ForwardOnly(Outcome):
    """The backend passed without gradients, which its declaration refuses."""

    status = "passed"


class NotChecked(Outcome):
    """There is no reference to compare with."""

    status = "not checked"


class Reported(Outcome):
    """Rounding in this dtype may hide an error, so the check proves nothing."""

    status = "reported"


@dataclass(frozen=True)
class PartCheck:
    """A check of one part of a model that is still to be run; `backend` if it concerns one."""

    property: str
    rule: str
    where: str
    check: Callable[[], float | None]
    backend: str = ""


@dataclass(frozen=True)
class Row:
    """The result of one property at one place.

    Args:
        part: "sub-layers" or "whole model".
        rule: its rule, such as "R19".
        where: the node, layer or site.
        backend: "" if the property concerns none.
        dtype: of the model.
        device: of the model.
        status: of the check.
        worst: the largest error over its bound; None if the property is exact.
        message: the error in words, or why the check did not run or decide.
        tensor: name of the wrong tensor, if the error is at an element.
        index: of the worst element.
        want: the correct value.
        bound: the largest allowed error.
    """

    part: Literal["sub-layers", "whole model"]
    property: str
    rule: str
    where: str
    backend: str
    dtype: str
    device: str
    status: Status
    worst: float | None = None
    message: str = ""
    tensor: str = ""
    index: tuple[int, ...] = ()
    got: float | None = None
    want: float | None = None
    bound: float | None = None

    def as_data(self) -> dict[str, Any]:
        """The row as JSON has it: numbers that JSON cannot hold are written out."""
        data = {**asdict(self), "index": list(self.index)}
        for name in ("worst", "got", "want", "bound"):
            number = data[name]
            if number is not None and not abs(number) < float("inf"):
                data[name] = str(number)
        return data


@dataclass(frozen=True)
class VerifyReport:
    """The result of `verify` on one model.

    Args:
        name: of the model.
        parameters: number of trainable parameters.
        weights: "as given", or the seed of the weights.
        devices: that were requested.
        dtypes: that were requested.
        backends: that were verified.
        batch: rows of the input.
        lengths: positions by input.
        seed: of the inputs.
        versions: of tfkit, torch, Python and the plugins.
        rows: one for each property at each place.
        seconds: time of the run.
        named: the backends were requested by name.
        finished: False in a report on a run that is not finished.
    """

    name: str
    parameters: int
    weights: str
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    backends: tuple[str, ...]
    batch: int
    lengths: dict[str, int]
    seed: int
    versions: dict[str, str]
    rows: tuple[Row, ...]
    seconds: float = 0.0
    named: bool = False
    finished: bool = True

    @property
    def missed(self) -> tuple[Row, ...]:
        """What was asked for and not evaluated: a device that is not here, a node without a reference, a backend, named, that
        served no call of the model."""
        unserved = [row for row in self.rows if self.named and row.property == "run" and row.status == "refused"]
        return (*(row for row in self.rows if row.status in ("not run", "inconclusive", "not checked")), *unserved)

    @property
    def verdict(self) -> Literal["VERIFIED", "FAILED", "INCOMPLETE"]:
        """The verdict over all rows. A refusal by a backend that was not asked for by name is no gap."""
        statuses = {row.status for row in self.rows}
        if "failed" in statuses:
            return "FAILED"
        return "INCOMPLETE" if self.missed or not self.finished or "passed" not in statuses else "VERIFIED"

    @property
    def ok(self) -> bool:
        """Whether everything that was asked for was evaluated and holds."""
        return self.verdict == "VERIFIED"

    def __str__(self) -> str:
        """The verdict, and a line for every row that failed or was not evaluated."""
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.status] = counts.get(row.status, 0) + 1
        lines = [f"{self.verdict}: {self.name}, {', '.join(f'{count} {status}' for status, count in counts.items())}"]
        for row in self.rows:
            if row.status == "failed" or row in self.missed:
                place = " ".join(filter(None, (row.where, row.backend, row.dtype, row.device)))
                lines.append(f"{row.status}: {row.property} ({row.rule}) at {place}: {row.message}".replace(" ()", ""))
        return "\n".join(lines)

    @property
    def exit_code(self) -> int:
        return {"VERIFIED": 0, "FAILED": 1, "INCOMPLETE": 3}[self.verdict]

    def as_data(self) -> dict[str, Any]:
        """The report as JSON has it."""
        fields = {name: value for name, value in self.__dict__.items() if name != "rows"}
        lists = {name: list(value) for name, value in fields.items() if isinstance(value, tuple)}
        rows = [row.as_data() for row in self.rows]
        return {
            **fields,
            **lists,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "rows": rows,
            "missed": [row.as_data() for row in self.missed],
        }


def same(check: str, got: Tensor, want: Tensor, words: str, tensor: str, visible: Tensor | None = None) -> None:
    """Raises Violation where the two differ by a bit anywhere (or where `visible` is true)."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise Violation(check, f"{words}: {tensor} is {tuple(got.shape)} {got.dtype}, not {tuple(want.shape)} {want.dtype}")
    differs = differing(got, want)
    if visible is not None:
        differs = differs & _spread(visible, differs)
    if bool(differs.any()):
        got, want = got.detach(), want.detach()
        index = first_of(differs)
        changed = f"{float(got[index]):.9g}, not {float(want[index]):.9g}"
        message = f"{words}: {tensor}{list(index)} is {changed}; not one bit may change"
        raise at_element(check, message, tensor, index, got, want, 0.0)


def close(
    check: str, got: Tensor, want: Tensor, bound: Tensor | float, words: str, tensor: str, visible: Tensor | None = None
) -> float:
    """The largest |got - want| / bound. Raises Violation where it is above 1, or where `got` holds a NaN."""
    if got.shape != want.shape:
        raise Violation(check, f"{words}: {tensor} is {tuple(got.shape)}, not {tuple(want.shape)}")
    got, want = got.detach(), want.detach()
    ratio = error_ratio(got, want, bound)
    if visible is not None:
        ratio = torch.where(_spread(visible.cpu(), ratio), ratio, 0.0)
    worst, index = worst_of(ratio)
    if worst > 1.0:
        limit = float(bound[index]) if isinstance(bound, Tensor) else bound
        numbers = f"{float(got[index]):.9g}, not {float(want[index]):.9g}"
        apart = abs(float(got[index]) - float(want[index]))
        message = f"{words}: {tensor}{list(index)} is {numbers}; they are {apart:.3g} apart, {limit:.3g} is allowed"
        raise at_element(check, message, tensor, index, got, want, limit)
    return worst


def _spread(visible: Tensor, like: Tensor) -> Tensor:
    """(B, L) bool over the further axes of a tensor."""
    return visible.reshape(*visible.shape, *([1] * (like.dim() - visible.dim()))).expand_as(like)
