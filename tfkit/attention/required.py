"""The check by which a backend refuses calls with features that it does not declare (rule A3: nothing is ever ignored).

    check = require_capabilities("acme.flash", CAPABILITIES)        # once, at import

    def attend(inputs, options):
        check(inputs)                                # raises BackendRefused with every undeclared feature

A model checks capabilities once per class of calls, before it calls a backend (`choice.py`). That check also covers devices,
lengths and compilation. Callers that use `attend` directly (a conformance test, a benchmark, another library) do not make it,
so a backend makes this one on every call. It has a test for each undeclared feature only, and so costs nothing for a backend
that declares every feature.
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
        can: the capabilities that the backend declares.

    Returns:
        A function of `AttentionInputs`. It raises BackendRefused if the call has a feature that `can` does not declare.
    """
    tests = tuple(_tests(can))

    def check(inputs: AttentionInputs) -> None:
        """Raises BackendRefused if the call has an undeclared feature."""
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
    undeclared = frozenset(MASK_TERMS) - can.mask_terms
    if undeclared:
        found.append((f"mask terms {', '.join(sorted(undeclared))}", lambda inputs: bool(undeclared & inputs.mask.terms())))
    for kind, name in BIAS_NAMES.items():
        if name not in can.bias_kinds:
            found.append((f"a {name} bias", partial(_has_bias, kind)))
        elif name not in can.bias_gradient:
            found.append((f"the gradient of a {name} bias", partial(_needs_gradient, kind)))
    dtypes = tuple(getattr(torch, dtype) for dtype in sorted(can.dtypes))
    found.append((f"dtypes other than {', '.join(sorted(can.dtypes))}", lambda inputs: inputs.query.dtype not in dtypes))
    allowed = can.head_dim
    if allowed is not None and (allowed.minimum, allowed.maximum, allowed.multiple) != (1, None, 1):
        found.append((f"head_dim outside {allowed}", lambda inputs: inputs.query.shape[3] not in allowed))
    return found


def _has_bias(kind: type, inputs: AttentionInputs) -> bool:
    return isinstance(inputs.bias, kind)


def _needs_gradient(kind: type, inputs: AttentionInputs) -> bool:
    bias = inputs.bias
    if bias is None or not isinstance(bias, kind):
        return False
    return (bias.slopes if isinstance(bias, LinearBias) else bias.values).requires_grad
