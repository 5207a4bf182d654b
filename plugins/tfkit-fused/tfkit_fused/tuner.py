"""Which tiles a kernel runs with: the measured fastest where measuring was requested, otherwise those of the table.

The first answer for a class of calls holds for as long as the process lives, so that the same call gives the same bits.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Sequence

import torch
import triton
from torch import Tensor

from .saved import Choice, Environment, Saved, place, source
from .tiles import Tiles
from .timer import milliseconds

Launch = Callable[[Tiles], object]


class Tuner:
    """The choices for one kind of device. `time` measures a launch in milliseconds; where `capturing` nothing is measured."""

    def __init__(self, saved: Saved, time: Callable[[Callable[[], object]], float], capturing: Callable[[], bool]) -> None:
        self.saved, self.time, self.capturing = saved, time, capturing
        self.answers: dict[str, Tiles] = {}
        self.measured: dict[str, Choice] = {}
        self.lock = threading.Lock()

    def chosen(
        self, call_class: str, tiles: tuple[Tiles, ...], measure: bool, launch: Launch, results: Sequence[Tensor] = ()
    ) -> Tiles:
        """One of `tiles`, the first where nothing is known of such calls and nothing may be measured. `launch` writes
        `results`."""
        with self.lock:
            if call_class not in self.answers:
                self.answers[call_class] = self._decided(call_class, tiles, measure, launch, results)
            return self.answers[call_class]

    def _decided(
        self, call_class: str, tiles: tuple[Tiles, ...], measure: bool, launch: Launch, results: Sequence[Tensor]
    ) -> Tiles:
        choice = self.saved.choices.get(call_class)
        if choice is None and measure:
            choice = self._measured(call_class, tiles, launch, results)
        if choice is None:
            return tiles[0]
        known = {candidate.shape: candidate for candidate in tiles}
        if choice.tiles not in known:
            warnings.warn(f"`fused`: {self.saved.path} chooses tiles that are none for `{call_class}`: not used", stacklevel=2)
        return known.get(choice.tiles, tiles[0])

    def _measured(self, call_class: str, tiles: tuple[Tiles, ...], launch: Launch, results: Sequence[Tensor]) -> Choice | None:
        """None where nothing runs: the launch itself reports the error. Tiles whose `results` are others than those of the
        first that run are never chosen."""
        if self.capturing():
            what = f"`{call_class}` was not measured: a CUDA graph is being captured. Call once before the capture"
            warnings.warn(f"`fused`: {what}", stacklevel=2)
            return None
        times: dict[Tiles, float] = {}
        expected: list[Tensor] | None = None
        for candidate in tiles:
            for result in results:
                result.fill_(torch.nan)  # what a launch does not write must not agree with the one before
            try:
                time = self.time(functools.partial(launch, candidate))
                expected = expected or [result.clone() for result in results]
                is_right = all(map(agree, results, expected))
            except Exception:  # whatever a compiler or driver says of tiles that do not fit here
                continue
            if is_right:
                times[candidate] = time
            else:
                what = f"`{call_class}` has other results with tiles {candidate} than with {next(iter(times))}: not used"
                warnings.warn(f"`fused`: {what}. Please report it, with the version of Triton", stacklevel=2)
        if not times:
            return None
        warned = {str(tried): times.get(tried) for tried in tiles}
        choice = self.saved.add(call_class, Choice(tiles=min(times, key=lambda tried: times[tried]).shape, milliseconds=warned))
        self.measured[call_class] = choice
        return choice


def agree(result: Tensor, expected: Tensor) -> bool:
    """Whether two orders of one sum may have given these: numbers that differ by little beside the largest that is finite. One
    batch row at a time, which needs little memory."""
    if not expected.numel():
        return True
    size = max(float(row.abs().nan_to_num(0.0, 0.0, 0.0).max()) for row in expected)
    limit = max(16 * torch.finfo(expected.dtype).eps, 1e-4) * size
    return all(
        bool((((one - other).abs() <= limit) | (one == other) | (one.isnan() & other.isnan())).all())
        for one, other in zip(result, expected, strict=True)
    )


@functools.cache
def tuner_of(device: torch.device) -> Tuner:
    """The tuner of a CUDA device; devices of one kind share theirs."""
    about = torch.cuda.get_device_properties(device)
    capability = f"{about.major}.{about.minor}"
    environment = Environment(device=about.name, capability=capability, triton=triton.__version__, kernels=source())
    return _tuner(environment)


@functools.cache
def _tuner(environment: Environment) -> Tuner:
    return Tuner(Saved(place(), environment), milliseconds, torch.cuda.is_current_stream_capturing)
