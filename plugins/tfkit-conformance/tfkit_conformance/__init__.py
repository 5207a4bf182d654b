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

from typing import TYPE_CHECKING

from tfkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from .attention.backend_under_test import BackendUnderTest as BackendUnderTest, backend_under_test as backend_under_test
    from .attention.bound import Bounds as Bounds, bounds as bounds
    from .attention.case import Case as Case
    from .attention.case_data import case_of as case_of
    from .attention.compare import error_ratios as error_ratios
    from .attention.reference import Reference as Reference, reference as reference_attention  # noqa: F401
    from .attention.strategies import cases as cases
    from .beams.check import check_beam_top_k as check_beam_top_k
    from .caches.check import check_cache as check_cache
    from .caches.contract import DecodingCache as DecodingCache
    from .callables.adaptor import (
        FunctionCall as FunctionCall,
        FunctionUnderTest as FunctionUnderTest,
        Rendering as Rendering,
        Signature as Signature,
    )
    from .callables.check import check_callable as check_callable, function_under_test as function_under_test
    from .finding import Finding as Finding, Inconclusive as Inconclusive, Violation as Violation
    from .laws import check_part as check_part
    from .products.check import check_product as check_product
    from .relations import RELATIONS as RELATIONS, Relation as Relation
    from .report import CheckResult as CheckResult, ConformanceReport as ConformanceReport, LedgerRow as LedgerRow
    from .suite.again import replay as replay
    from .suite.conformance import check_backend as check_backend
    from .verification import verify as verify

__getattr__, __dir__, __all__ = lazy_names(__name__)
