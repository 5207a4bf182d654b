"""Backends refuse calls with features they do not declare (rule A3: nothing is ever ignored).

    check = require_capabilities("acme.flash", CAPABILITIES)        # once, at import

    def attend(inputs, options):
        check(inputs)                                # raises BackendRefused with every undeclared feature

A model checks capabilities before it calls a backend, once per class of calls (`choice.py`). That check also knows devices,
lengths, compilation and other backends, but only a model makes it. This one protects callers that use `attend` directly: a
conformance test, a benchmark, another library. It contains a test only for each feature that is not declared, so a backend that
declares everything pays nothing. So neither check can replace the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..errors import BackendRefused, Diagnostic
from .capabilities import MASK_TERMS, Capabilities
from .types import BIAS_NAMES, AttentionInputs, LinearBias

Test = Callable[[AttentionInputs], bool]


def require_capabilities(name: str, can: Capabilities) -> Callable[[AttentionInputs], None]:
    """A check that a backend calls first in its `attend`.

    Args:
        name: the backend's name, for the message.
        can: what the backend declares.

    Returns:
        A function of `AttentionInputs`. It raises BackendRefused if the call has a feature that `can` does not declare.
    """
    tests = tuple(_tests(can))

    def check(inputs: AttentionInputs) -> None:
        """Raises BackendRefused."""
        for _, present in tests:
            if present(inputs):
                refused = ", ".join(feature for feature, present in tests if present(inputs))
                raise BackendRefused(Diagnostic("TFK060", f"`{name}` does not declare {refused}", "choose another backend"))

    return check


def _tests(can: Capabilities) -> list[tuple[str, Test]]:
    found: list[tuple[str, Test]] = []
    if "*" not in can.scores:
        found.append(("score functions", lambda inputs: inputs.score is not None))
    for able, feature, present in (
        (can.softcap, "softcap", lambda inputs: inputs.softcap is not None),
        (can.dropout, "dropout", lambda inputs: inputs.dropout > 0.0),
        (can.weights != "none", "attention weights", lambda inputs: inputs.return_weights),
        (can.lse, "the log-sum-exp", lambda inputs: inputs.return_lse),
        (can.grouped_queries, "fewer key/value heads than query heads",
         lambda inputs: inputs.query.shape[1] != inputs.value.shape[1]),
        (can.value_dim_differs, "a value dim other than head_dim",
         lambda inputs: inputs.query.shape[3] != inputs.value.shape[3]),
        (can.tensor_offset, "an offset per batch row", lambda inputs: isinstance(inputs.mask.offset, Tensor)),
    ):  # fmt: skip
        if not able:
            found.append((feature, present))
    lacking = frozenset(MASK_TERMS) - can.mask_terms
    if lacking:
        found.append((f"mask terms {', '.join(sorted(lacking))}", lambda inputs: bool(lacking & inputs.mask.terms())))
    for kind, kept in BIAS_NAMES.items():
        if kept not in can.bias_kinds:
            found.append((f"a {kept} bias", partial(_has_bias, kind)))
        elif kept not in can.bias_gradient:
            found.append((f"the gradient of a {kept} bias", partial(_wants_gradient, kind)))
    dtypes = tuple(getattr(torch, dtype) for dtype in sorted(can.dtypes))
    found.append((f"dtypes other than {', '.join(sorted(can.dtypes))}", lambda inputs: inputs.query.dtype not in dtypes))
    allowed = can.head_dim
    if allowed is not None and (allowed.minimum, allowed.maximum, allowed.multiple) != (1, None, 1):
        found.append((f"head_dim outside {allowed}", lambda inputs: inputs.query.shape[3] not in allowed))
    return found


def _has_bias(kind: type, inputs: AttentionInputs) -> bool:
    return isinstance(inputs.bias, kind)


def _wants_gradient(kind: type, inputs: AttentionInputs) -> bool:
    bias = inputs.bias
    if bias is None or not isinstance(bias, kind):
        return False
    return (bias.slopes if isinstance(bias, LinearBias) else bias.values).requires_grad
