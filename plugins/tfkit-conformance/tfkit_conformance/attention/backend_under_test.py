"""A backend under test: its declaration, its functions, and the device of its calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from tfkit.inspection import Verdict, check_request
from tfkit.plugin import AttentionBackend, AttentionInputs, AttentionOutput, AttentionRequest, Capabilities
from tfkit.plugin.model_parts import load

from ..source import Source, read_source

Attend = Callable[[AttentionInputs, Any], AttentionOutput]
Prepare = Callable[..., Any]

_RUNNING: list[str] = []
"""The names of the backends whose calls are running, in any thread: a backend may start threads of its own."""


@dataclass(frozen=True)
class BackendUnderTest:
    """A backend with its options on one device. `backend_under_test` makes one.

    Args:
        entry: the slot entry, with the declared capabilities.
        options: the options of the backend.
        device: "cpu", "cuda" or "cuda:1".
        attend: called as `attend(inputs, options)`.
        prepare: called as `prepare(mask, bias, shapes, options)`, or None.
        tf32: its float32 products are TF32, even if torch's switch is off.
        kernel: the function whose source is read; by default `attend` and `prepare`.
    """

    entry: AttentionBackend
    options: Any
    device: str
    attend: Attend
    prepare: Prepare | None = None
    tf32: bool = False
    kernel: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def capabilities(self) -> Capabilities:
        return self.entry.capabilities

    @cached_property
    def source(self) -> Source:
        """What can be read of the kernel."""
        return read_source(*([self.attend, self.prepare] if self.kernel is None else [self.kernel]))

    def note_lines(self) -> None:
        """From here on, calls note which lines of the source run. Reading the source takes longer than a small call."""
        assert self.source is not None

    def traced(self) -> AbstractContextManager[None]:
        """Notes which lines of the source run, if it was read."""
        return self.source.traced() if "source" in vars(self) else nullcontext()

    def evaluate(self, request: AttentionRequest) -> Verdict:
        """What the declaration says to a request: accepted, or refused with reasons."""
        return check_request(self.entry, request, self.options)

    def accepts(self, request: AttentionRequest) -> bool:
        """Whether the declaration accepts a request."""
        return self.evaluate(request).accepted

    def call(self, inputs: AttentionInputs) -> AttentionOutput:
        """Calls the backend without autocast. Meanwhile the reference raises Violation if it is called."""
        _RUNNING.append(self.name)
        try:
            with torch.autocast(inputs.query.device.type, enabled=False), self.traced():
                return self.attend(inputs, self.options)
        finally:
            _RUNNING.remove(self.name)


def backend_under_test(
    entry: AttentionBackend,
    options: Any = None,
    device: str = "cpu",
    attend: Attend | None = None,
    tf32: bool = False,
    kernel: Callable[..., Any] | None = None,
) -> BackendUnderTest:
    """Binds a backend to options and a device.

    Args:
        entry: the slot entry.
        options: its options; the defaults by default.
        device: "cpu", "cuda" or "cuda:1".
        attend: a function to call in place of the entry's, such as a mutant.
        tf32: the float32 products of the backend are TF32, even if torch's switch is off.
        kernel: the function whose source is read; by default the one that is called.

    Returns:
        The backend with its functions imported.

    Raises:
        PluginError: its functions cannot be imported.
    """
    options = entry.options() if options is None else options
    if attend is not None:
        return BackendUnderTest(entry, options, device, attend, tf32=tf32, kernel=kernel)
    return BackendUnderTest(entry, options, device, load(entry.attend), load(entry.prepare) if entry.prepare else None)


def under_test() -> str:
    """The name of the backend whose call is running, or ""."""
    return _RUNNING[-1] if _RUNNING else ""
