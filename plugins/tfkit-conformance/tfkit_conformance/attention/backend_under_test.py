"""A backend under test: its declaration, its functions, and the device of its calls."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from tfkit.inspection import Verdict, check_request
from tfkit.plugin import AttentionBackend, AttentionInputs, AttentionOutput, AttentionRequest, Capabilities
from tfkit.plugin.model_parts import load

Attend = Callable[[AttentionInputs, Any], AttentionOutput]
Prepare = Callable[..., Any]

_UNDER_TEST: ContextVar[str] = ContextVar("_UNDER_TEST", default="")


@dataclass(frozen=True)
class BackendUnderTest:
    """One backend with its options on one device; `call` runs it as the dispatcher would. `tf32`: its float32 products are
    TF32 whatever torch's own switch says."""

    entry: AttentionBackend
    options: Any
    device: str
    attend: Attend
    prepare: Prepare | None = None
    tf32: bool = False

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def capabilities(self) -> Capabilities:
        return self.entry.capabilities

    def evaluate(self, request: AttentionRequest) -> Verdict:
        """The verdict of its declaration on a request."""
        return check_request(self.entry, request, self.options)

    def accepts(self, request: AttentionRequest) -> bool:
        """Whether its declaration accepts a request with nothing left open."""
        return self.evaluate(request).accepted

    def call(self, inputs: AttentionInputs) -> AttentionOutput:
        """One call, without autocast; meanwhile the reference refuses to be asked."""
        token = _UNDER_TEST.set(self.name)
        try:
            with torch.autocast(inputs.query.device.type, enabled=False):
                return self.attend(inputs, self.options)
        finally:
            _UNDER_TEST.reset(token)


def backend_under_test(
    entry: AttentionBackend, options: Any = None, device: str = "cpu", attend: Attend | None = None, tf32: bool = False
) -> BackendUnderTest:
    """Binds a backend to options and a device.

    Args:
        entry: the slot entry.
        options: its options; the defaults by default.
        device: "cpu", "cuda" or "cuda:1".
        attend: a function to call in place of the entry's, such as a mutant.
        tf32: the float32 products of the backend are TF32 whatever torch's switch says.

    Returns:
        The backend with its functions imported.

    Raises:
        PluginError: its functions cannot be imported.
    """
    options = entry.options() if options is None else options
    if attend is not None:
        return BackendUnderTest(entry, options, device, attend, tf32=tf32)
    return BackendUnderTest(entry, options, device, load(entry.attend), load(entry.prepare) if entry.prepare else None)


def under_test() -> str:
    """The name of the backend that is being called right now, or nothing."""
    return _UNDER_TEST.get()
