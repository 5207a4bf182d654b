"""One backend at one cell: checks the request, compares the results, times calls. Its exceptions do not stop the others."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tfkit import TfkitError
from tfkit.inspection import BoundBackend, attend, bind, check_request
from tfkit.plugin import AttentionBackend, AttentionInputs, AttentionRequest, shapes_of

from ..raised import allocator_message
from .call import Call
from .check import ReferenceCheck
from .timer import Clock

WARM_UP = 2


class DeviceLost(Exception):
    """After a failed kernel, nothing runs on the device."""


@dataclass
class Candidate:
    """`status`: timed, refused, wrong, failed, memory (too little), slow (one call took more than its share of the budget) or
    skipped (by an interruption). `seconds` are those of every timed call; `reason` says what no figure says."""

    name: str
    status: str = "timed"
    reason: str = ""
    reasons: tuple[str, ...] = ()
    seconds: list[float] = field(default_factory=list)
    prepare_seconds: float | None = None
    peak_bytes: int | None = None
    worst_error: float | None = None
    worst_tensor: str = ""
    backend: BoundBackend | None = None
    call: Call | None = None
    inputs: AttentionInputs | None = None

    @property
    def running(self) -> bool:
        return self.status == "timed"

    def stop(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason

    def step(self) -> None:
        """What is timed: the call, with its backward pass where the cell trains. A mask is prepared once for all layers of a
        model and so not timed here, a bias that learns is rendered anew in every step and so is."""
        assert self.backend is not None
        assert self.call is not None
        assert self.inputs is not None
        call, inputs, backend = self.call, self.inputs, self.backend
        if inputs.prepared is None and backend.prepare is not None:
            prepared = backend.prepare(inputs.mask, inputs.bias, shapes_of(inputs), backend.options)
            inputs = replace(inputs, prepared=prepared)
        with torch.set_grad_enabled(call.cell.training):
            output = attend(backend, inputs).output
            if call.cell.training:
                torch.autograd.grad(output, [leaf for leaf in call.leaves if leaf.requires_grad], call.grad_output)

    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


def entered(entry: AttentionBackend, options: Any, call: Call, request: AttentionRequest) -> Candidate:
    """A backend as a candidate for a cell, or its refusal."""
    candidate = Candidate(entry.name)
    verdict = check_request(entry, request, options)
    if verdict.refused:
        candidate.stop("refused", verdict.refused[0])
        candidate.reasons = verdict.refused
        return candidate
    try:
        candidate.backend = bind(entry, options)
    except TfkitError as error:
        candidate.stop("failed", error.diagnostics[0].message)
    candidate.call, candidate.inputs = call, call.inputs
    return candidate


def prepare(candidate: Candidate, evaluated: ReferenceCheck, clock: Clock, device: str, longest: float) -> float:
    """Everything before the rounds: the check, warm-up, memory. Gives the seconds of a warm call; a candidate whose
    call takes more than `longest` seconds is stopped with the one time that it has. Raises DeviceLost."""
    with guarded(candidate, device):
        assert candidate.backend is not None
        inputs = evaluated.call.inputs
        if candidate.backend.prepare is not None and not (evaluated.call.cell.training and inputs.bias is not None):
            _prepare_once(candidate, inputs, clock)
        candidate.step()  # the first call may compile
        first = clock.time(candidate.step)
        if first > longest:
            candidate.seconds = [first]
            candidate.stop("slow", f"one call took {first:.1f} s, more than its share of the budget")
            return first
        assert candidate.inputs is not None
        verdict = evaluated.evaluate(candidate.backend, candidate.inputs.prepared)
        candidate.worst_error, candidate.worst_tensor = verdict.worst, verdict.tensor
        if verdict.wrong:
            candidate.stop("wrong", f"{verdict.tensor} is off by {verdict.worst:.3g} times its bound")
            return 0.0
        candidate.peak_bytes = clock.peak(candidate.step)
        return min(clock.time(candidate.step) for _ in range(WARM_UP))
    return 0.0


def _prepare_once(candidate: Candidate, inputs: AttentionInputs, clock: Clock) -> None:
    backend, prepared = candidate.backend, []
    assert backend is not None
    assert backend.prepare is not None
    make = backend.prepare

    def render() -> None:
        prepared.append(make(inputs.mask, inputs.bias, shapes_of(inputs), backend.options))

    with torch.no_grad():
        render()
        candidate.prepare_seconds = clock.time(render)
    candidate.inputs = replace(inputs, prepared=prepared[0])


@contextmanager
def guarded(candidate: Candidate, device: str) -> Iterator[None]:
    """Turns what a backend raises into its status. Raises DeviceLost if nothing runs on the device any more."""
    try:
        yield
    except Exception as reason:  # any exception of a backend is its result, and the others go on
        message = " ".join(f"{type(reason).__name__}: {reason}".split())[:300]
        candidate.stop(*(("memory", "out of memory") if allocator_message(reason) else ("failed", message)))
        candidate.seconds.clear()
        if device.startswith("cuda"):
            try:
                torch.cuda.synchronize(device)
            except RuntimeError as lost:
                raise DeviceLost(f"{candidate.name}: {message}") from lost
            torch.cuda.empty_cache()
