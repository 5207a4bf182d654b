"""The call of a backend. The caller checks the shapes and turns autocast off around it; the backend checks the features.

Autocast would cast the products inside the backend again. Float32 attention under bf16 autocast then has an error of 8.7e-3
although its inputs are exact.

A backend refuses calls with features that it does not declare (rule A3: nothing is ever ignored):

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

from ..errors import BackendRefused, Diagnostic, InputError, PluginError
from .capabilities import MASK_TERMS, Capabilities, Range
from .choice import BoundBackend
from .features import PRESENCE
from .types import BIAS_NAMES, AttentionInputs, AttentionOutput, DenseBias, DistanceBias, LinearBias


def attend(backend: BoundBackend, inputs: AttentionInputs) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v by one backend.

    Args:
        backend: the backend with its options.
        inputs: query (B, H, Q, D), key (B, G, K, D), value (B, G, K, V), mask, bias and settings.

    Returns:
        The output (B, H, Q, V), with the weights (B, H, Q, K) and the log-sum-exp (B, H, Q) if requested.

    Raises:
        InputError: shapes or dtypes do not fit together.
        PluginError: the backend returned something else than an output of that shape and the query's dtype.
    """
    _check_shapes(inputs)
    query = inputs.query
    if torch.is_grad_enabled() and not backend.entry.capabilities.double_backward and not torch.compiler.is_compiling():
        _refuse_second_derivatives(backend, inputs)
    if not query.is_meta and torch.is_autocast_enabled(query.device.type):
        with torch.autocast(query.device.type, enabled=False):
            result = backend.attend(inputs, backend.options)
    else:
        result = backend.attend(inputs, backend.options)
    expected = (*query.shape[:3], inputs.value.shape[3])
    if not isinstance(result, AttentionOutput):
        _fail(backend, f"a {type(result).__name__}", "an AttentionOutput")
    elif result.output.shape != expected or result.output.dtype != query.dtype:
        output = result.output
        _fail(backend, f"an output {tuple(output.shape)} {output.dtype}", f"(B, H, Q, V) = {expected} {query.dtype}")
    return result


def _refuse_second_derivatives(backend: BoundBackend, inputs: AttentionInputs) -> None:
    """Raises BackendRefused in place of the kernel's own error, once a gradient that the backend computed is differentiated.

    The tensors that a model gives are results of its layers. Those of a caller (leaves) keep no hook.
    """

    def refuse(_: Tensor) -> None:
        message = f"the attention backend `{backend.kind}` has no second derivatives (double backward)"
        raise BackendRefused(Diagnostic("TFK060", message, 'use `eager`, which has: `model.set_backend("eager")`'))

    def watch(gradient: Tensor) -> None:
        if gradient.requires_grad:  # `create_graph=True`
            gradient.register_hook(refuse)  # type: ignore[no-untyped-call]

    for tensor in (inputs.query, inputs.key, inputs.value):
        if tensor.requires_grad and not tensor.is_leaf:
            tensor.register_hook(watch)  # type: ignore[no-untyped-call]


def _fail(backend: BoundBackend, returned: str, expected: str) -> None:
    message = f"the attention backend `{backend.kind}` returned {returned}, not {expected}"
    raise PluginError(Diagnostic("TFK056", message, "repair its `attend`"))


def _check_shapes(inputs: AttentionInputs) -> None:
    query, key, value = inputs.query, inputs.key, inputs.value
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        _refuse(inputs, "query, key and value have four axes each: (B,H,Q,D), (B,G,K,D), (B,G,K,V)")
    B, H, Q, D = query.shape
    G, K = key.shape[1], key.shape[2]
    if key.shape[0] != B or (key.shape[3] != D and inputs.score is None) or value.shape[:3] != (B, G, K) or H % G:
        _refuse(inputs, "batch, key length and head dim must agree, and key heads must divide query heads")
    if B < 1 or Q < 1 or K < 1:
        _refuse(inputs, "an empty batch or sequence has no attention")
    if not query.dtype == key.dtype == value.dtype:
        _refuse(inputs, "query, key and value have one dtype")
    _check_mask(inputs, B, H, Q, K)


def _check_mask(inputs: AttentionInputs, B: int, H: int, Q: int, K: int) -> None:
    mask = inputs.mask
    for name, tensor, wanted in (
        ("key_lengths", mask.key_lengths, (B,)),
        ("query_lengths", mask.query_lengths, (B,)),
        ("key_visible", mask.key_visible, (B, K)),
        ("query_segments", mask.query_segments, (B, Q)),
        ("key_segments", mask.key_segments, (B, K)),
    ):
        if tensor is not None and tensor.shape != wanted:
            _refuse(inputs, f"mask.{name} has shape {tuple(tensor.shape)} where {wanted} is needed")
    if mask.visible is not None:
        _check_broadcast(inputs, "mask.visible", mask.visible, (B, H, Q, K))
    if (mask.query_segments is None) != (mask.key_segments is None):
        _refuse(inputs, "mask.query_segments and mask.key_segments are given together or not at all")
    offset, bias = mask.offset, inputs.bias
    if isinstance(offset, Tensor) and (offset.shape != (B,) or offset.is_floating_point()):
        _refuse(inputs, f"mask.offset is {offset.dtype} {tuple(offset.shape)}; one integer per batch row is needed")
    if offset is None and (mask.causal or mask.window is not None or isinstance(bias, (LinearBias, DistanceBias))):
        _refuse(inputs, "causal, a window and a position bias need `mask.offset`, the position of the first query")
    if isinstance(bias, DenseBias):
        _check_broadcast(inputs, "bias.values", bias.values, (B, H, Q, K))
    elif isinstance(bias, LinearBias) and bias.slopes.shape != (H,):
        _refuse(inputs, f"bias.slopes has shape {tuple(bias.slopes.shape)} where one slope per head, ({H},), is needed")
    elif isinstance(bias, DistanceBias) and (bias.values.dim() != 2 or bias.values.shape[0] != H):
        _refuse(inputs, f"bias.values has shape {tuple(bias.values.shape)} where one row per head, ({H}, R), is needed")


def _check_broadcast(inputs: AttentionInputs, name: str, tensor: Tensor, wanted: tuple[int, ...]) -> None:
    sizes = (1,) * (4 - tensor.dim()) + tuple(tensor.shape)
    if tensor.dim() > 4 or any(size not in (1, full) for size, full in zip(sizes, wanted, strict=True)):
        _refuse(inputs, f"{name} has shape {tuple(tensor.shape)}, which does not broadcast to (B, H, Q, K) = {wanted}")


def _refuse(inputs: AttentionInputs, rule: str) -> None:
    shapes = ", ".join(
        f"{name} {tuple(tensor.shape)} {tensor.dtype}"
        for name, tensor in (("query", inputs.query), ("key", inputs.key), ("value", inputs.value))
    )
    raise InputError(Diagnostic("TFK070", f"attention inputs do not fit: {shapes}", rule))


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
    tests: list[tuple[str, Test]] = []
    if "*" not in can.scores:
        tests.append(("score functions", lambda inputs: inputs.score is not None))
    tests += [(feature.words, present) for feature, present in PRESENCE if not feature.declared(can)]
    if not can.value_dim_differs:
        tests.append(("a value dim other than head_dim", lambda inputs: inputs.query.shape[3] != inputs.value.shape[3]))
    undeclared = frozenset(MASK_TERMS) - can.mask_terms
    if undeclared:
        tests.append((f"mask terms {', '.join(sorted(undeclared))}", lambda inputs: bool(undeclared & inputs.mask.terms())))
    for kind, name in BIAS_NAMES.items():
        if name not in can.bias_kinds:
            tests.append((f"a {name} bias", partial(_has_bias, kind)))
        elif name not in can.bias_gradient:
            tests.append((f"the gradient of a {name} bias", partial(_needs_gradient, kind)))
    dtypes = tuple(getattr(torch, dtype) for dtype in sorted(can.dtypes))
    tests.append((f"dtypes other than {', '.join(sorted(can.dtypes))}", lambda inputs: inputs.query.dtype not in dtypes))
    allowed = can.head_dim
    if allowed is not None and (allowed.minimum, allowed.maximum, allowed.multiple) != (1, None, 1):
        tests.append((f"head_dim outside {allowed}", _outside(allowed)))
    return tests


def _outside(allowed: Range) -> Test:
    low, high, multiple = allowed.minimum, allowed.maximum or float("inf"), allowed.multiple
    return lambda inputs: not low <= inputs.query.shape[3] <= high or inputs.query.shape[3] % multiple != 0


def _has_bias(kind: type, inputs: AttentionInputs) -> bool:
    return isinstance(inputs.bias, kind)


def _needs_gradient(kind: type, inputs: AttentionInputs) -> bool:
    bias = inputs.bias
    if bias is None or not isinstance(bias, kind):
        return False
    return (bias.slopes if isinstance(bias, LinearBias) else bias.values).requires_grad
