"""Checks of parts and of models. pytest is not needed.

    report = check_backend("acme.flash", profile="standard")       # attention, against a float64 reference
    report = check_part("position", "acme.rope")                   # any other slot, by its laws
    report = verify("specs/transformer-base.yaml")                 # a whole model
    report.raise_for_failures()

Functions   `check_callable` checks a plain function of a known form (`Signature`), without a plugin.
Caches      `check_cache` checks a class of caches for decoding (`DecodingCache`), without a plugin.
Products    `check_product` checks a linear map in int8 or bfloat16, without a plugin.
Beams       `check_beam_top_k` checks how a beam search selects continuations, without a plugin.
Checks      `check_backend` and `check_part` give a `ConformanceReport` (`CheckResult`, `Finding`, `LedgerRow`); `verify` gives
            a `VerifyReport`; `replay` runs one stored case again. `RELATIONS` are the metamorphic relations (`Relation`).
Cases       `Case` is one attention call as data, `case_of` reads one, `cases` draws them (Hypothesis), `backend_under_test`
            binds a backend, or another function in its place.
Comparing   `reference_attention` is the float64 result (`Reference`), `bounds` the largest error that a correct backend can
            have (`Bounds`), `error_ratios` the errors of one call as shares of these bounds.
Exceptions  A check raises `Violation` where a rule is broken, `Inconclusive` where a case cannot decide.

Names are imported when first used: importing the package imports neither torch nor Hypothesis.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention.backend_under_test import BackendUnderTest, backend_under_test
    from .attention.bound import Bounds, bounds
    from .attention.case import Case
    from .attention.case_data import case_of
    from .attention.compare import error_ratios
    from .attention.reference import Reference
    from .attention.reference import reference as reference_attention
    from .attention.strategies import cases
    from .beams.check import check_beam_top_k
    from .caches.check import check_cache
    from .caches.contract import DecodingCache
    from .callables.adaptor import FunctionUnderTest
    from .callables.check import check_callable, function_under_test
    from .callables.signature import FunctionCall, Rendering, Signature
    from .finding import Finding, Inconclusive, Violation
    from .laws import check_part
    from .products.check import check_product
    from .relations import RELATIONS, Relation
    from .report import CheckResult, ConformanceReport, LedgerRow
    from .suite.again import replay
    from .suite.conformance import check_backend
    from .verification import verify

_HOMES = {
    "Bounds": "attention.bound",
    "Case": "attention.case",
    "CheckResult": "report",
    "DecodingCache": "caches.contract",
    "ConformanceReport": "report",
    "Finding": "finding",
    "FunctionCall": "callables.signature",
    "FunctionUnderTest": "callables.adaptor",
    "Inconclusive": "finding",
    "LedgerRow": "report",
    "RELATIONS": "relations",
    "Reference": "attention.reference",
    "Rendering": "callables.signature",
    "Signature": "callables.signature",
    "Relation": "relations",
    "BackendUnderTest": "attention.backend_under_test",
    "Violation": "finding",
    "bounds": "attention.bound",
    "case_of": "attention.case_data",
    "cases": "attention.strategies",
    "check_backend": "suite.conformance",
    "check_beam_top_k": "beams.check",
    "check_cache": "caches.check",
    "check_callable": "callables.check",
    "check_part": "laws",
    "check_product": "products.check",
    "error_ratios": "attention.compare",
    "function_under_test": "callables.check",
    "reference_attention": "attention.reference",
    "replay": "suite.again",
    "backend_under_test": "attention.backend_under_test",
    "verify": "verification",
}

_OWN_NAMES = {"reference_attention": "reference"}
"""Names that their home calls otherwise."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), _OWN_NAMES.get(name, name))


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})


__all__ = [
    "BackendUnderTest",
    "Bounds",
    "Case",
    "CheckResult",
    "ConformanceReport",
    "DecodingCache",
    "Finding",
    "FunctionCall",
    "FunctionUnderTest",
    "Inconclusive",
    "LedgerRow",
    "RELATIONS",
    "Reference",
    "Relation",
    "Rendering",
    "Signature",
    "Violation",
    "backend_under_test",
    "bounds",
    "case_of",
    "cases",
    "check_backend",
    "check_beam_top_k",
    "check_cache",
    "check_callable",
    "check_part",
    "check_product",
    "error_ratios",
    "function_under_test",
    "reference_attention",
    "replay",
    "verify",
]
