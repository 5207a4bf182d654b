"""Which backend an attention site uses, class of call by class of call.

A site holds its candidates in the order of the spec's wish. A call falls into a class: device, dtype, length class, whether
gradients, dropout or weights are wanted, which mask terms and which bias are present. The first time a class is met, every
candidate is judged by its capabilities, and the verdict is kept; tensor values never matter. A named backend is used or
refused with every reason; only `auto` and an explicit list fall back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import BackendRefused
from ..slots.lazy import load
from .backend import AttentionBackend
from .capabilities import AttentionRequest
from .selection import ranked, refusal
from .types import BIAS_NAMES, AttentionInputs, AttentionOutput, Bias, Mask, Prepared, Shapes

CallClass = tuple[Any, ...]
Attend = Callable[[AttentionInputs, Any], AttentionOutput]
Prepare = Callable[[Mask, "Bias | None", Shapes, Any], "Prepared | None"]


@dataclass(frozen=True)
class BoundBackend:
    """A backend with its options, its functions imported."""

    entry: AttentionBackend
    options: Any
    attend: Attend
    prepare: Prepare | None
    name: str

    @property
    def kind(self) -> str:
        return self.entry.name


def bind(entry: AttentionBackend, options: Any) -> BoundBackend:
    """Import the functions of a backend. Raises PluginError when they cannot be imported."""
    name = f"{entry.name} {options!r}"
    return BoundBackend(entry, options, load(entry.attend), load(entry.prepare) if entry.prepare else None, name)


class BackendChoice:
    """The backends that one attention site may use, and what was decided for each class of calls met so far.

    `wish` is what was asked for, as a spec writes it. `automatic` orders the candidates by their measured rows (`auto`),
    otherwise the order is the spec's. `others` are all backends installed, named in a refusal where they would have worked.
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
        self.cuts = sorted({end for candidate in candidates for row in candidate.entry.auto for end in row.lengths if end})
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
        """The backends among those it may choose on a device that only one thread may call at a time."""
        return [
            candidate.kind
            for candidate in self.candidates
            if not candidate.entry.threads
            and device in {each.kind for each in candidate.entry.capabilities.devices}
            and (not self.automatic or any(row.device == device for row in candidate.entry.auto))
        ]

    def select(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        bias: Bias | None,
        dropout: float,
        softcap: float | None,
        score: str,
    ) -> BoundBackend:
        """The backend for this class of calls. Raises BackendRefused with every candidate's reasons."""
        gradients = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
        bias_gradient = bias is not None and torch.is_grad_enabled() and _bias_tensor(bias).requires_grad
        call: CallClass = (
            query.device.type,
            query.device.index or 0,
            query.dtype,
            *self._lengths(query.shape[2], key.shape[2]),
            query.shape[3],
            value.shape[3],
            query.shape[1] != key.shape[1],
            gradients or bias_gradient,
            bias_gradient,
            dropout > 0.0,
            softcap is not None,
            None if bias is None else BIAS_NAMES[type(bias)],
            mask.causal,
            mask.window is not None,
            isinstance(mask.offset, Tensor),
            mask.key_lengths is not None,
            mask.query_lengths is not None,
            mask.key_visible is not None,
            mask.query_segments is not None,
            mask.visible is not None,
            score,
            torch.are_deterministic_algorithms_enabled(),
        )
        if torch.compiler.is_compiling():
            traced: int = self._select_traced(call, torch.compiler.is_exporting())
            return self.candidates[traced]
        found = self.decided.get(call)
        if found is None:
            found = self.decided[call] = self.check_request(request_of_class(call))
        return self.candidates[found]

    def _lengths(self, queries: int, keys: int) -> tuple[int | None, int | None]:
        """The lengths where a candidate's limits need them, else the smallest of their class, so that a growing cache meets
        few classes and a compiled model with dynamic lengths few guards. A single query is a class of its own where a row
        speaks of decoding. An exported program has one backend for all lengths, the one for long ones."""
        if self.exact:
            return queries, keys
        if torch.compiler.is_exporting():
            return None, None
        longest, low = max(queries, keys), 1
        for cut in self.cuts:
            if longest <= cut:
                break
            low = cut + 1
        if not self.decoding:
            return low, low
        return (1, low) if queries == 1 else (max(low, 2), max(low, 2))

    def check_request(self, request: AttentionRequest) -> int:
        """The index of the candidate that serves a request. Raises BackendRefused when none does."""
        order = ranked([(c.entry, c.options) for c in self.candidates], request, self.automatic)
        for index, verdict in order:
            if verdict.accepted:
                return index
        raise BackendRefused(refusal(self.site, self.requested, order, self.candidates_as_pairs(), request, self.others))

    def candidates_as_pairs(self) -> list[tuple[AttentionBackend, Any]]:
        return [(candidate.entry, candidate.options) for candidate in self.candidates]

    def _select_traced(self, call: CallClass, exporting: bool) -> int:
        return self.check_request(replace(request_of_class(call), compiled=not exporting, exported=exporting))

    # What torch.compiler.assume_constant_result sets; calling that would import Dynamo, more than a second, for every build.
    _select_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]


TERMS = ("causal", "window", "tensor_offset", "key_lengths", "query_lengths", "key_visible", "segments", "visible")


def request_of_class(call: CallClass) -> AttentionRequest:
    """What a class of calls asks of a backend."""
    (device, number, dtype, queries, keys, head_dim, value_dim, grouped, gradients, bias_gradient, dropout, softcap,
     bias, *terms, score, deterministic) = call  # fmt: skip
    present = {name for name, there in zip(TERMS, terms, strict=True) if there}
    return AttentionRequest(
        device=device,
        cuda_capability=torch.cuda.get_device_capability(number) if device == "cuda" else None,
        dtype=str(dtype).removeprefix("torch."),
        head_dim=head_dim,
        value_dim=value_dim,
        queries=queries,
        keys=keys,
        mask_terms=frozenset(present - {"tensor_offset"}),
        tensor_offset="tensor_offset" in present,
        bias=bias,
        bias_gradient=bias_gradient,
        dropout=dropout,
        grouped=grouped,
        softcap=softcap,
        score=score,
        gradients=gradients,
        deterministic=deterministic,
    )


def _bias_tensor(bias: Bias) -> Tensor:
    tensor = getattr(bias, "values", None)
    return tensor if tensor is not None else bias.slopes  # type: ignore[union-attr]
