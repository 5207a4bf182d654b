"""The slot entry of an attention backend, and the check of a request against its capabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..slots.options import Entry
from .auto_table import AutoRow
from .capabilities import AttentionRequest, Capabilities
from .features import FEATURES


@dataclass(frozen=True)
class Verdict:
    """The result of `check_request`.

    Args:
        refused: the reasons why the backend cannot serve the request; empty if it can.
        depends: properties of the call that the request leaves open and that may still lead to a refusal.
    """

    refused: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        return not self.refused


@dataclass(frozen=True, kw_only=True)
class AttentionBackend(Entry):
    """An attention backend, as a plugin registers it.

    Args:
        attend: `"module:function"`, called as `attend(inputs, options)`; returns an `AttentionOutput`.
        capabilities: the features that it supports.
        unsupported: `unsupported(request, options)` returns reasons to refuse combinations of features. It must be monotone:
            a request for less never gets more reasons.
        prepare: `"module:function"`, called as `prepare(mask, bias, shapes, options)` once per stack and forward pass. Every
            layer gets the result as `inputs.prepared`.
        auto: measured rows, inline or in files (`AutoTable`). `auto` uses the first row that covers a call and never chooses a
            backend without one.
        threads: several threads may call `attend` and `prepare` at the same time. Otherwise a search runs its batches one
            after the other.
    """

    attend: str
    capabilities: Capabilities
    unsupported: Callable[[AttentionRequest, Any], tuple[str, ...]] = lambda request, options: ()
    prepare: str | None = None
    auto: Sequence[AutoRow] = ()
    threads: bool = False


AUTO = Entry(name="auto", summary="the fastest backend that is measured and right for each class of calls")
"""`backend: auto` in a spec. It is not a backend: the measured rows choose one."""


def check_request(backend: AttentionBackend, request: AttentionRequest, options: Any) -> Verdict:
    """Check a request against the capabilities of a backend. Every feature that it does not declare is a reason to refuse.

    Args:
        backend: the entry of the backend.
        request: the requirements of an attention site.
        options: the options of the backend.

    Returns:
        The verdict, with all reasons.
    """
    can = backend.capabilities
    refused: list[str] = []
    depends: list[str] = []

    def ask(value: Any, name: str, fits: Callable[[Any], bool], reason: Callable[[Any], str]) -> None:
        if value is None:
            depends.append(name)
        elif not fits(value):
            refused.append(reason(value))

    ask(request.device, "the device", lambda kind: any(kind == device.kind for device in can.devices),
        lambda kind: f"device {kind} is not among {_names(device.kind for device in can.devices)}")  # fmt: skip
    if request.device is not None:
        _check_capability(can, request, refused, depends)
    ask(request.dtype, "the dtype", lambda dtype: dtype in can.dtypes,
        lambda dtype: f"dtype {dtype} is not among {_names(can.dtypes)}")  # fmt: skip
    for name, value, allowed in (
        ("head_dim", request.head_dim, can.head_dim),
        ("query length", request.queries, can.query_length),
        ("key length", request.keys, can.key_length),
    ):
        if allowed is None:
            refused.append(f"no {name} is declared")
        elif value is None:
            if (allowed.minimum, allowed.maximum, allowed.multiple) != (1, None, 1):
                depends.append(f"the {name}")
        elif value not in allowed:
            refused.append(f"{name} {value} is outside {allowed}")
    if request.value_dim is not None and request.value_dim != request.head_dim and not can.value_dim_differs:
        refused.append(f"value dim {request.value_dim} differs from head_dim {request.head_dim}")
    for term in sorted(request.mask_terms - can.mask_terms):
        refused.append(f"mask term {term} is not declared")
    if request.bias is not None and request.bias not in can.bias_kinds:
        refused.append(f"{request.bias} bias is not declared")
    elif request.bias is not None and request.bias_gradient and request.bias not in can.bias_gradient:
        refused.append(f"no gradient for a {request.bias} bias")
    if not {request.score, "*"} & can.scores:
        refused.append(f"score function {request.score} is not declared")
    needed = request if request.gradients else replace(request, deterministic=False)
    refused.extend(feature.reason for feature in FEATURES if feature.wanted(needed) and not feature.declared(can))
    if request.gradients is None and not can.backward:
        depends.append("whether gradients are wanted")
    refused.extend(backend.unsupported(request, options))
    return Verdict(tuple(refused), tuple(depends))


def _check_capability(can: Capabilities, request: AttentionRequest, refused: list[str], depends: list[str]) -> None:
    needs = [device.minimum_capability for device in can.devices if device.kind == request.device]
    if not needs or None in needs:
        return
    lowest = min(need for need in needs if need)
    if request.cuda_capability is None:
        depends.append("the compute capability")
    elif request.cuda_capability < lowest:
        have, need = (f"sm_{major}{minor}" for major, minor in (request.cuda_capability, lowest))
        refused.append(f"{have} is older than {need}")


def _names(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
