"""A finding in the terms of the function's author: the call as it was made, and the index in his layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from ..attention.case_data import case_of
from ..finding import Finding
from ..snippets import function_snippet
from .adaptor import FunctionUnderTest
from .signature import FunctionCall, Rendering

ROWS = ("output", "visible", "weights", "lse", "gradient of query")
"""Tensors whose index begins with batch row, head and query."""


def authored(function: FunctionUnderTest, finding: Finding) -> Finding:
    """The finding with the calls that its case makes and with Python that runs them."""
    if not finding.case:
        return finding
    case = case_of(finding.case)
    snippet = function_snippet(function.name, function.signature.name, sorted(function.supports), finding.case,
                               function.device, finding.check, function.dtypes)  # fmt: skip
    try:
        rendering = function.render(case.inputs(function.device))
    except Exception:  # the finding itself says what the call raised
        return replace(finding, snippet=snippet)
    lines = [_written(function, call) for call in rendering.calls[:3]]
    if len(rendering.calls) > 3:
        lines.append(f"and {len(rendering.calls) - 3} more calls")
    place = _place(function, rendering, finding, case.H // case.G)
    return replace(finding, call="\n".join([*([place] if place else []), *lines]), snippet=snippet)


def _written(function: FunctionUnderTest, call: FunctionCall) -> str:
    names = list(function.signature.names)
    before = [] if function.signature.input_layout == "" else ["module"]
    packed = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"] if len(call.arguments) > 5 else ["mask"]
    known = [*before, *names, *packed]
    parts = [f"{name}={_short(value)}" for name, value in zip(known, call.arguments, strict=False)]
    parts += [f"{name}={_short(value)}" for name, value in call.keywords.items()]
    return f"{function.name.rpartition(':')[2]}({', '.join(parts)})"


def _short(value: Any) -> str:
    if isinstance(value, Tensor) and value.dim() == 1 and len(value) <= 8:
        return f"{value.tolist()}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return repr(value) if isinstance(value, (bool, int, float, tuple, type(None))) else type(value).__name__


def _place(function: FunctionUnderTest, rendering: Rendering, finding: Finding, ratio: int) -> str:
    """The elements that the finding is about, by the names and in the layout of the form."""
    if finding.tensor not in ROWS or len(finding.index) < 3:
        return ""
    b, h, i, *rest = finding.index
    found = rendering.place(b, h, i)
    form = function.signature
    if found is None:
        return ""
    number, index = found
    head = [str(part) for part in index]
    query, key, _ = form.names
    which = f"call {number + 1}, " if len(rendering.calls) > 1 else ""
    text = f"{which}layout ({', '.join(form.layout.split())}): output[{', '.join(head)}]"
    if form.input_layout:
        text = f"{which}output[{', '.join(head)}] in the layout ({', '.join(form.layout.split())})"
    elif finding.tensor == "visible" and rest and "T" not in form.layout:
        axes = form.layout.split()
        at = {"B": b, "H": h // ratio, "S": rest[0]}
        keys = ", ".join(str(at[axis]) for axis in axes if axis != "D")
        text += f", {query}[{', '.join(head)}], {key}[{keys}]"
    return text + _mask_element(rendering.calls[number], finding)


def _mask_element(call: FunctionCall, finding: Finding) -> str:
    """What a dense mask says of the pair."""
    if finding.tensor != "visible" or len(finding.index) != 4:
        return ""
    for name in ("attn_mask", "attn_bias", "mask"):
        mask = call.keywords.get(name)
        if mask is not None and len(mask.shape) == 4:
            at = tuple(place if size > 1 else 0 for place, size in zip(finding.index, mask.shape, strict=True))
            return f"; {name}[{', '.join(map(str, at))}] is {mask[at].item()}"
    return ""
