"""What a call of a plain attention function looks like: `Signature`, as data and one renderer.

A renderer writes a request of the contract as calls of the function, in the function's own layout and arguments, and reads the
results back. An author brings a signature by making one: `--signature my_pkg.forms:MINE`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tfkit.plugin import AttentionInputs

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
        name: of the signature.
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
