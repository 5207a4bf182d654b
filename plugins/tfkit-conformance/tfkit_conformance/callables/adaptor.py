"""A plain function as a backend under test: the one adaptor of `--callable`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import (
    AttentionBackend,
    AttentionInputs,
    AttentionOutput,
    AttentionRequest,
    Capabilities,
    Device,
    NoOptions,
    Numerics,
    Range,
    require_capabilities,
    shapes_of,
    visible,
)

from ..attention.backend_under_test import BackendUnderTest, backend_under_test

Takes = Callable[[str], bool]
"""Whether the function has a parameter of this name."""

Place = tuple[int, tuple[int, ...]]
"""The number of a call, and the index of a query row in the output that this call returns, without its last axis."""


@dataclass(frozen=True)
class FunctionCall:
    """One call of the function: `function(*arguments, **keywords)`.

    Args:
        arguments: the positional arguments.
        keywords: the others; an argument with its default value is left out.
    """

    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rendering:
    """A request as calls of the function.

    Args:
        calls: usually one; none if no query sees a key.
        read: makes output (B,H,Q,V) and, if requested, log-sum-exp (B,H,Q) of the results. Raises Violation for a result of
            the wrong type or shape.
        place: where the output of (batch row, head, query) is found; None if no call computes it.
    """

    calls: tuple[FunctionCall, ...]
    read: Callable[[list[Any]], tuple[Tensor, Tensor | None]]
    place: Callable[[int, int, int], Place | None]


@dataclass(frozen=True)
class Signature:
    """A form of attention functions.

    Args:
        definition: the function's first line, as documentation shows it.
        layout: axes of the output, such as "B S H D".
        names: parameter names of query, key and value.
        features: the words of `--supports`, each with the capabilities that it stands for.
        needs: the parameters that a feature needs, any one of them; a feature that is not here needs none.
        render: `render(inputs, takes)` gives the calls.
        scale: parameter of the softmax scale; "" if there is none. The query is scaled if the function does not take it.
        zero_rows: the form promises a zero output for a query that sees no key.
        dtypes: that the form can hold.
        input_layout: axes of query, key and value, if they differ from those of the output.
    """

    name: str
    definition: str
    layout: str
    names: tuple[str, str, str]
    features: Mapping[str, Mapping[str, Any]]
    needs: Mapping[str, tuple[str, ...]]
    render: Callable[[AttentionInputs, Takes], Rendering]
    scale: str = ""
    zero_rows: bool = False
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16", "float64")
    input_layout: str = ""


NUMERICS = Numerics(scores="storage", probabilities="storage", gradients="storage", query_prescaled=True, tf32=True)
"""Nothing is known of where a function rounds, so that every matrix may be in the dtype of the query."""

ANY = Range()


def _not_square(request: AttentionRequest, options: Any) -> tuple[str, ...]:
    return () if request.queries == request.keys else ("other numbers of queries than of keys",)


STRIDES = "strides"
"""The feature of a function that takes tensors as they lie in memory; another one gets contiguous tensors in its layout."""


@dataclass(frozen=True)
class FunctionUnderTest:
    """A function, its signature, and what it supports.

    Args:
        name: of the function, such as "my_pkg.kernels:attention".
        function: called in the signature's form.
        supports: names of features, of `signature.features` or "strides".
        dtypes: of query, key and value.
        device: of the tensors, "cpu", "cuda" or "cuda:1".
        head_dim: values of D.
        length: values of Q and of K.
        square: it needs as many queries as keys.
        trial: a context for each call of the probe, by its case.
    """

    name: str
    function: Callable[..., Any]
    signature: Signature
    supports: frozenset[str] = frozenset()
    dtypes: tuple[str, ...] = ("float32",)
    device: str = "cpu"
    head_dim: Range = ANY
    length: Range = ANY
    square: bool = False
    trial: Callable[..., AbstractContextManager[Any]] = nullcontext

    @cached_property
    def parameters(self) -> frozenset[str] | None:
        """The names of the function's parameters; None if they are not known, or any name is taken."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):
            return None
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return None
        return frozenset(parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY)

    def takes(self, name: str) -> bool:
        """Whether the function has a parameter of this name."""
        return self.parameters is None or name in self.parameters

    @property
    def capabilities(self) -> Capabilities:
        """What the features stand for, as the declaration of a backend."""
        fields: dict[str, Any] = {}
        for name in self.supports - {STRIDES}:
            for feature, value in self.signature.features[name].items():
                fields[feature] = fields.get(feature, set()) | value if isinstance(value, set) else value
        positions = {"causal", "window"} & fields.get("mask_terms", set()) or {"linear"} & fields.get("bias_kinds", set())
        fields["tensor_offset"] = bool(fields.get("tensor_offset") and positions)
        if not fields.get("backward"):
            fields.pop("bias_gradient", None)
        fields["bias_gradient"] = fields.get("bias_gradient", set()) & fields.get("bias_kinds", set())
        return Capabilities(
            devices=(Device(kind=self.device.partition(":")[0]),), dtypes=frozenset(self.dtypes), head_dim=self.head_dim,
            query_length=self.length, key_length=self.length, numerics=NUMERICS, **fields,
        )  # fmt: skip

    @cached_property
    def subject(self) -> BackendUnderTest:
        """The function as a backend under test."""
        entry = AttentionBackend(
            name=self.name, summary=f"a function of the form {self.signature.name}",
            attend=f"{__name__}:FunctionUnderTest.attend", capabilities=self.capabilities,
            unsupported=_not_square if self.square else lambda request, options: (),
        )  # fmt: skip
        return backend_under_test(entry, NoOptions(), self.device, self.attend, kernel=self.function)

    def attend(self, inputs: AttentionInputs, options: Any = None) -> AttentionOutput:
        """softmax(scale q k^T + bias, masked) v by calls of the function."""
        self._check(inputs)
        rendering = self.render(inputs)
        output, lse = rendering.read([self.function(*call.arguments, **call.keywords) for call in rendering.calls])
        seen = visible(inputs.mask, shapes_of(inputs))
        if seen is None:
            return AttentionOutput(output, lse=lse)
        rows = seen.any(-1, keepdim=True).expand(*output.shape[:3], 1)
        # If the form promises zero, a row that sees no key is not repaired, but an infinite gradient does not enter it.
        kept = rows | (output.detach() != 0) if self.signature.zero_rows else rows
        if lse is not None:
            lse = torch.where(rows[..., 0], lse, -torch.inf)
        return AttentionOutput(torch.where(kept, output, 0.0), lse=lse)

    def render(self, inputs: AttentionInputs) -> Rendering:
        """The calls of the function that answer a request."""
        usual, name = inputs.query.shape[3] ** -0.5, self.signature.scale
        keywords: dict[str, Any] = {}
        if name and self.takes(name):
            keywords = {} if inputs.scale == usual else {name: inputs.scale}
        elif inputs.scale != usual:
            inputs = replace(inputs, query=inputs.query * (inputs.scale / usual), scale=usual)
        rendering = self.signature.render(inputs, self.takes)
        return replace(rendering, calls=tuple(self._written(call, keywords) for call in rendering.calls))

    def _written(self, call: FunctionCall, keywords: dict[str, Any]) -> FunctionCall:
        arguments = call.arguments
        if STRIDES not in self.supports:
            arguments = tuple(argument.contiguous() if isinstance(argument, Tensor) else argument for argument in arguments)
        return FunctionCall(arguments, {**keywords, **call.keywords})

    @cached_property
    def _check(self) -> Callable[[AttentionInputs], None]:
        return require_capabilities(self.name, self.capabilities)

    def with_features(self, *names: str) -> FunctionUnderTest:
        """The function with more features."""
        return replace(self, supports=self.supports | set(names))

    def declared(self, names: Iterable[str]) -> FunctionUnderTest:
        """The function with these features alone."""
        return replace(self, supports=frozenset(names))
