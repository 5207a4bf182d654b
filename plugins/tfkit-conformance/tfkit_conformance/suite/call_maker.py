"""Makes a call and compares all that it gives with the reference. Around it nothing may change: the inputs, the results of the
call before it, the settings and the random numbers of the process."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs

from ..attention.backend_under_test import BackendUnderTest
from ..attention.compare import leaves_of
from ..attention.evaluated import Call, run
from ..attention.score_functions import without_score
from ..differences import differing
from ..finding import Violation
from ..relations.paired_calls import named, wants_gradients
from .fixed_calls import compared, gradients_compared
from .layers import changed_setting, mask_tensors, process_settings, within

CHECK = "guided calls"
Elsewhere = Callable[[Callable[[], Any]], Any]
"""Runs a function, in another thread for instance."""


def here(work: Callable[[], Any]) -> Any:
    return work()


REFUSED = ("modified by an inplace operation", "has been modified inplace")
"""torch's errors of a backward pass whose tensors, or the bases of whose views, changed since the forward pass."""


class CallMaker:
    """Makes the calls of a run one after another. It keeps the last results, which no later call may change."""

    def __init__(self, subject: BackendUnderTest) -> None:
        self.subject = subject
        self.last: dict[str, tuple[Tensor, Tensor]] = {}

    def make(
        self,
        inputs: AttentionInputs,
        sent: Tensor,
        when: str,
        between: Callable[[Tensor], Any] | None = None,
        elsewhere: Elsewhere = here,
        right: Any = None,
    ) -> float:
        """The largest error of a call as a share of its bound. Raises Violation, Inconclusive.

        Args:
            inputs: the call.
            sent: the gradient (B,H,Q,V) of the output.
            when: what happened before, in words.
            between: comes between the forward and the backward pass, and gets the output.
            elsewhere: runs the backward pass.
            right: a call with the same reference, so that it is computed once.
        """
        tensors = [*leaves_of(inputs).values(), *mask_tensors(inputs.mask), sent]
        before = [tensor.detach().clone() for tensor in tensors]
        settings, state, worst, how = process_settings(environment=False), random_states(), 0.0, ""
        call, equal = Call(self.subject, inputs, sent), right or self.reference(inputs, sent)
        wants = wants_gradients(inputs)
        try:
            if between is not None or elsewhere is not here:
                _ = call.output, equal.reference.gradients, equal.bounds.gradients  # before a tensor changes
                if between is not None:
                    between(call.output.output)
                if wants:
                    elsewhere(lambda: call.gradients)
                results = gradients_compared(call, equal) if wants else ()
            else:
                results = compared(call, wants, CHECK, equal)
            for form, name, got, want, bound in results:
                how = form  # for the message of the next comparison that fails, too
                worst = max(worst, within(CHECK, name, got, want, bound))
        except Violation as violation:
            if between is not None and any(words in violation.message for words in REFUSED):
                return worst  # that is an error, as it should be
            raise type(violation)(CHECK, f"{violation.message}{how}{when}", **violation.numbers) from violation
        if between is None:
            check_around(tensors, before, settings, state, when)
        for name, (result, kept) in self.last.items():
            if bool(differing(result, kept).any()):
                raise Violation(CHECK, f"the {name} of the call before it changed{when}")
        last = named(call.output, call.gradients if wants else {})
        self._check_types(inputs, last, when)
        self.last = {name: (result, result.clone()) for name, result in last.items()}
        return worst

    def _check_types(self, inputs: AttentionInputs, results: dict[str, Tensor], when: str) -> None:
        due = {f"gradient of {name}": leaf.dtype for name, leaf in leaves_of(inputs).items()}
        for name, result in results.items():
            dtype = due.get(name, inputs.query.dtype)
            if result.dtype != dtype and name != "lse":
                raise Violation(CHECK, f"the {name} is {result.dtype}, and {dtype} is due{when}")

    def reference(self, inputs: AttentionInputs, sent: Tensor) -> Call:
        """A call whose reference and bounds are those of `inputs`."""
        return Call(self.subject, without_score(inputs), sent)

    def run(self, inputs: AttentionInputs) -> Any:
        """What a call gives. Raises Violation where it changes a setting of the process."""
        settings = process_settings(environment=False)
        answer = run(self.subject, inputs, CHECK)
        check_settings(settings, "")
        return answer


def check_around(
    tensors: list[Tensor], before: list[Tensor], settings: dict[str, object], state: tuple[Any, ...], when: str
) -> None:
    """Raises Violation where inputs, settings or random states are not those from before a call."""
    for tensor, kept in zip(tensors, before, strict=True):
        if not torch.equal(tensor, kept):
            raise Violation(CHECK, f"an input {tuple(tensor.shape)} {tensor.dtype} was written to{when}")
    check_settings(settings, when)
    if random_states() != state:
        raise Violation(CHECK, f"drew random numbers although dropout is 0{when}")


def check_settings(settings: dict[str, object], when: str) -> None:
    """Raises Violation where a setting of the process is another one than before."""
    if changed := changed_setting(settings):
        raise Violation(CHECK, f"changed {changed}, and left it so{when}")


@contextmanager
def _set_to(value: Any, get: Callable[[], Any], put: Callable[[Any], Any]) -> Iterator[None]:
    """A setting of torch is another one, and then what it was."""
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def torch_threads(number: int) -> AbstractContextManager[None]:
    """So many threads of torch: a kernel that leaves one behind changes nothing where there is one."""
    return _set_to(number, torch.get_num_threads, torch.set_num_threads)


def default_dtype(dtype: torch.dtype) -> AbstractContextManager[None]:
    """Another default dtype of torch, as some programs have."""
    return _set_to(dtype, torch.get_default_dtype, torch.set_default_dtype)


def product_precision(precision: str) -> AbstractContextManager[None]:
    """Another precision of float32 products."""
    return _set_to(precision, torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)


@contextmanager
def memory_of_nan() -> Iterator[None]:
    """Memory that torch does not initialise holds NaN, as it does under torch's switch for deterministic algorithms."""
    before = torch.get_deterministic_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*determinis")  # of operations that have no deterministic form
        torch.set_deterministic_debug_mode("warn")
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(before)


def random_states() -> tuple[Any, ...]:
    """Of torch, Python and, where it is imported, NumPy."""
    numpy = sys.modules.get("numpy")
    other = () if numpy is None else (numpy.random.get_state()[1].tobytes(), numpy.random.get_state()[2])
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), other
