"""A right backend that declares little, so that a whole run of the suite takes a second, and what makes it wrong."""

from __future__ import annotations

from dataclasses import replace

from tfkit.plugin import Capabilities, Device, Numerics, Range, require_capabilities
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.mutants.kernel import entry_of
from tfkit_conformance.mutants.kernel.kernel import Kernel

SMALL = Capabilities(
    devices=(Device(kind="cpu"),),
    dtypes={"float32"},
    head_dim=Range(minimum=8, maximum=16, multiple=8),
    query_length=Range(maximum=12),
    key_length=Range(maximum=12),
    mask_terms={"causal"},
    backward=True,
    deterministic_backward=True,
    numerics=Numerics(tf32=True, nan_as_zero=frozenset({"cpu", "cuda"})),
)


def declaring(**declared):
    """The small declaration with other entries."""
    return Capabilities(**{**SMALL.model_dump(), **declared})


def guarded(attend, can=SMALL):
    """The function behind a guard of the declaration."""
    check = require_capabilities("small", can)

    def refusing(inputs, options):
        check(inputs)
        return attend(inputs, options)

    return refusing


RIGHT = Kernel()


def small(attend=RIGHT, can=SMALL, name="small", **entry):
    """The subject: a function behind a guard, checked against its capabilities."""
    return backend_under_test(replace(entry_of(name, "a small backend", can), **entry), attend=guarded(attend, can))


def changing(change):
    """The right answer, changed on the way out: `change(inputs, answer)`."""
    return lambda inputs, options: change(inputs, Kernel()(inputs))
