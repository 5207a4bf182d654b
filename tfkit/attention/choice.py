"""Chooses the backend of an attention site for every class of calls.

A site has one or more candidate backends, in the order in which they were requested. The class of a call holds its device,
dtype, length class, mask terms, kind of bias and whether it needs gradients or dropout, but no tensor values. The capabilities
of the candidates are checked once per class, and the choice is remembered. A named backend is used or refused with every
reason; only `auto` and an explicit list fall back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import BackendRefused
from ..slots.lazy import load
from ..slots.processor_kernels import CannotRecord
from .backend import AttentionBackend
from .capabilities import MASK_TERMS, AttentionRequest
from .features import features_of
from .selection import ranked, refusal
from .types import BIAS_NAMES, AttentionInputs, AttentionOutput, Bias, Mask, Prepared, Shapes

Attend = Callable[[AttentionInputs, Any], AttentionOutput]
Prepare = Callable[[Mask, "Bias | None", Shapes, Any], "Prepared | None"]


class CallClass(NamedTuple):
    """All properties of a call that the choice of a backend may depend on.

    `queries` and `keys` are lengths, or the smallest lengths of their class; None in an exported program. `scores` is the least
    B H Q K of its class, None if no row of the device's tables depends on it. `mask` says which of `MASK_TERMS` are present,
    `features` names those of `FEATURES`. The other fields are those of `AttentionRequest`.
    """

    device: str
    device_index: int
    dtype: torch.dtype
    queries: int | None
    keys: int | None
    head_dim: int
    value_dim: int
    mask: tuple[bool, ...]
    bias: str | None
    bias_gradient: bool
    score: str
    features: tuple[str, ...]
    gradients: bool
    deterministic: bool
    scores: int | None

    def request(self) -> AttentionRequest:
        """What this class of calls needs from a backend."""
        fields = self._asdict()
        index, mask, dtype = (fields.pop(name) for name in ("device_index", "mask", "dtype"))
        fields |= dict.fromkeys(fields.pop("features"), True)
        return AttentionRequest(
            cuda_capability=torch.cuda.get_device_capability(index) if self.device == "cuda" else None,
            dtype=str(dtype).removeprefix("torch."),
            mask_terms=frozenset(compress(MASK_TERMS, mask)),
            **fields,
        )


@dataclass(frozen=True)
class BoundBackend:
    """A backend with its options and imported functions.

    Args:
        entry: the entry of the backend.
        options: its options.
        attend: its `attend`.
        prepare: its `prepare`, or None.
        name: the backend's name with its options; equal for equal backends.
    """

    entry: AttentionBackend
    options: Any
    attend: Attend
    prepare: Prepare | None
    name: str

    @property
    def kind(self) -> str:
        return self.entry.name


def bind(entry: AttentionBackend, options: Any) -> BoundBackend:
    """Import the functions of a backend.

    Args:
        entry: the entry of the backend.
        options: its options.

    Returns:
        The backend, ready to be called.

    Raises:
        PluginError: a function cannot be imported.
    """
    name = f"{entry.name} {options!r}"
    return BoundBackend(entry, options, load(entry.attend), load(entry.prepare) if entry.prepare else None, name)


_recording: ContextVar[BoundBackend | None] = ContextVar("recording", default=None)


@contextmanager
def recording_attention(
    entry: AttentionBackend, options: Any, attend: Attend, prepare: Prepare | None = None
) -> Iterator[None]:
    """Attention of this thread by two functions, which record it (`tfkit.plugin.StepRecorder`), wherever the backend was
    requested or may be chosen.

    Args:
        entry: the backend whose capabilities they have.
        options: its options.
        attend: as that of a backend.
        prepare: as that of a backend, or None.
    """
    token = _recording.set(BoundBackend(entry, options, attend, prepare, "recording"))
    try:
        yield
    finally:
        _recording.reset(token)


class RefusedWhileTraced(BackendRefused, AssertionError):
    """A refusal inside torch.compile or torch.export. Dynamo passes an AssertionError on; it would wrap another exception.

    Args:
        diagnostics: the refusals.
    """


class BackendChoice:
    """The candidate backends of one attention site, and the choice for every class of calls so far.

    Args:
        site: name of the site.
        requested_backends: the request as a spec writes it.
        candidates: the requested backends, in that order.
        automatic: order the candidates by their measured times (`auto`) instead.
        others: all installed backends; a refusal names those that would work.
    """

    def __init__(
        self,
        site: str,
        requested_backends: list[Any],
        candidates: tuple[BoundBackend, ...],
        automatic: bool,
        others: tuple[tuple[AttentionBackend, Any], ...],
    ) -> None:
        self.site = site
        self.requested_backends = requested_backends
        self.candidates = candidates
        self.automatic = automatic
        self.others = others
        self.length_cuts, self.score_cuts = _cuts(candidates, "lengths"), _cuts(candidates, "scores")
        self.decoding = any(row.decoding is not None for candidate in candidates for row in candidate.entry.auto)
        self.exact = any(
            (allowed.minimum, allowed.maximum, allowed.multiple) != (1, None, 1)
            for candidate in candidates
            for allowed in (candidate.entry.capabilities.query_length, candidate.entry.capabilities.key_length)
            if allowed is not None
        )
        self.decided: dict[CallClass, int] = {}

    @property
    def requested(self) -> str:
        return "auto" if self.automatic else ", ".join(candidate.kind for candidate in self.candidates)

    def not_thread_safe(self, device: str) -> list[str]:
        """The candidates on a device that only one thread may call at a time.

        Args:
            device: the kind of device, such as "cpu".

        Returns:
            The names of the backends.
        """
        return [
            candidate.kind
            for candidate in self.candidates
            if not candidate.entry.threads
            and device in {supported.kind for supported in candidate.entry.capabilities.devices}
            and (not self.automatic or any(row.device == device for row in candidate.entry.auto))
        ]

    def select(self, inputs: AttentionInputs, score: str = "dot") -> BoundBackend:
        """The backend for a call.

        Args:
            inputs: the call.
            score: name of its score function.

        Returns:
            The first candidate that supports the call; with `auto`, the fastest one.

        Raises:
            BackendRefused: no candidate can serve this class of calls, with the reasons of each.
            CannotRecord: a step is recorded, and another backend was asked for than the one that can be.
        """
        recording = None if torch.compiler.is_compiling() else _recording.get()
        if recording is not None:
            if self.automatic or recording.kind in {one.kind for one in self.candidates}:
                return recording
            raise CannotRecord(f"another backend than `{recording.kind}` was asked for: {self.requested}")
        query, key, value, bias = inputs.query, inputs.key, inputs.value, inputs.bias
        gradients = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
        bias_gradient = bias is not None and torch.is_grad_enabled() and _bias_tensor(bias).requires_grad
        # The fields of CallClass in order, as a plain tuple: a named tuple costs 1.5 microseconds more on every call. Both are
        # equal and have the same hash, so the plain tuple finds the entry of the named one.
        call = (
            query.device.type,
            query.device.index or 0,
            query.dtype,
            *self._lengths(query.device.type, query.shape[2], key.shape[2]),
            query.shape[3],
            value.shape[3],
            inputs.mask.present_terms(),
            None if bias is None else BIAS_NAMES[type(bias)],
            bias_gradient,
            score,
            features_of(inputs),
            gradients or bias_gradient,
            torch.are_deterministic_algorithms_enabled(),
            self._scores(query, key) if self.score_cuts else None,
        )
        if torch.compiler.is_compiling():
            traced: int = self._select_traced(call, torch.compiler.is_exporting())
            return self.candidates[traced]
        index: int | None = self.decided.get(call)  # type: ignore[call-overload]
        if index is None:
            call_class = CallClass._make(call)
            index = self.decided[call_class] = self.check_request(call_class.request())
        return self.candidates[index]

    def _lengths(self, device: str, queries: int, keys: int) -> tuple[int | None, int | None]:
        """The lengths of the class of a call.

        These are the lengths themselves if a candidate limits its lengths, otherwise the smallest of their class: a growing
        cache then meets few classes, and a compiled model with dynamic lengths needs few guards. A single query is its own
        class if a candidate has measured rows for decoding. An exported program has one backend for all lengths.
        """
        if self.exact:
            return queries, keys
        if torch.compiler.is_exporting():
            return None, None
        length, low = max(queries, keys), 1
        for cut in self.length_cuts.get(device, ()):
            if length <= cut:
                break
            low = cut + 1
        if not self.decoding:
            return low, low
        return (1, low) if queries == 1 else (max(low, 2), max(low, 2))

    def _scores(self, query: Tensor, key: Tensor) -> int | None:
        """The least number of scores of a call's class; None if no table of the device asks, and in an exported program."""
        cuts = self.score_cuts.get(query.device.type)
        if cuts is None or torch.compiler.is_exporting():
            return None
        number = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
        return max((cut + 1 for cut in cuts if number > cut), default=1)

    def check_request(self, request: AttentionRequest) -> int:
        """The candidate that serves a request.

        Args:
            request: the requirements of a class of calls.

        Returns:
            The index of the first candidate that accepts; with `auto`, of the fastest one.

        Raises:
            BackendRefused: no candidate accepts, with the reasons of each.
        """
        order = ranked([(c.entry, c.options) for c in self.candidates], request, self.automatic)
        for index, verdict in order:
            if verdict.accepted:
                return index
        raise BackendRefused(refusal(self.site, self.requested, order, self.candidates_as_pairs(), request, self.others))

    def candidates_as_pairs(self) -> list[tuple[AttentionBackend, Any]]:
        """The candidates for functions that work without torch.

        Returns:
            The entry and the options of each candidate.
        """
        return [(candidate.entry, candidate.options) for candidate in self.candidates]

    def _select_traced(self, call: tuple[Any, ...], exporting: bool) -> int:
        request = CallClass._make(call).request()
        try:
            return self.check_request(replace(request, compiled=not exporting, exported=exporting))
        except BackendRefused as reason:
            raise RefusedWhileTraced(reason.diagnostics) from None

    # torch.compiler.assume_constant_result sets this attribute. Calling it would import Dynamo, which takes over a second.
    _select_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _cuts(candidates: tuple[BoundBackend, ...], name: str) -> dict[str, list[int]]:
    """By device, the numbers at which a class of calls ends: of `lengths` or of `scores`."""
    cuts: dict[str, set[int]] = {}
    for candidate in candidates:
        for row in candidate.entry.auto:
            low, high = getattr(row, name)
            cuts.setdefault(row.device, set()).update(end for end in (low - 1, high) if end)
    return {device: sorted(ends) for device, ends in cuts.items() if ends}


def _bias_tensor(bias: Bias) -> Tensor:
    tensor = getattr(bias, "values", None)
    return tensor if tensor is not None else bias.slopes  # type: ignore[union-attr]
