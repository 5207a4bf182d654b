"""The forms with a dense mask: sdpa, additive_mask, huggingface, xformers, numpy.

A query that sees no key is shown all keys, and its output is discarded: what these forms return for it is not specified.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, dense_bias, shapes_of, unmask_empty_rows, visible

from ..finding import Inconclusive, Violation
from .adaptor import FunctionCall, Rendering, Signature, Takes

DENSE_FEATURES: dict[str, dict[str, Any]] = {
    "causal": {"mask_terms": {"causal"}},
    "padding": {"mask_terms": {"key_lengths", "key_visible"}},
    "mask": {"mask_terms": {"window", "query_lengths", "segments", "visible"}, "tensor_offset": True},
    "bias": {"bias_kinds": {"dense"}},
    "gqa": {"grouped_queries": True},
    "value_dim": {"value_dim_differs": True},
    "dropout": {"dropout": True},
    "backward": {"backward": True},
    "bias_backward": {"bias_gradient": {"dense"}},
}


def features(*left_out: str) -> dict[str, dict[str, Any]]:
    """The features of a form with a dense mask, without some."""
    return {name: value for name, value in DENSE_FEATURES.items() if name not in left_out}


def from_position_0(inputs: AttentionInputs) -> bool:
    """Whether causality, aligned to the first query and the first key, is the whole mask."""
    mask = inputs.mask
    return mask.terms() == {"causal"} and not isinstance(mask.offset, Tensor) and mask.offset == 0


def shown(inputs: AttentionInputs) -> Tensor | None:
    """(B|1,H|1,Q,K) bool: True if the query sees the key, or sees none; None if all see all."""
    shapes = shapes_of(inputs)
    seen = visible(inputs.mask, shapes)
    if seen is None:
        return None
    whole = seen.expand(*seen.shape[:2], shapes.queries, shapes.keys)
    return unmask_empty_rows(whole)[0].contiguous()


def bias_of(inputs: AttentionInputs) -> Tensor | None:
    """The bias in the query's dtype, (B|1,H|1,Q,K). Raises Inconclusive if that would round it."""
    if inputs.bias is None:
        return None
    shapes = shapes_of(inputs)
    values = dense_bias(inputs.bias, inputs.mask.offset, shapes)
    cast = values.to(inputs.query.dtype)
    if not torch.equal(cast.detach().to(values.dtype), values.detach()):
        raise Inconclusive(f"this float32 bias cannot be written in {str(inputs.query.dtype).removeprefix('torch.')}")
    return cast.expand(*cast.shape[:2], shapes.queries, shapes.keys)


def additive(inputs: AttentionInputs, hidden: float = -torch.inf) -> Tensor | None:
    """Mask and bias as one tensor that is added to the scores; None if it would be zero."""
    seen, bias = shown(inputs), bias_of(inputs)
    if seen is None:
        return bias
    start = torch.zeros((), dtype=inputs.query.dtype, device=inputs.query.device) if bias is None else bias
    return torch.where(seen, start, hidden)


def query_of(inputs: AttentionInputs) -> Tensor:
    """The query. A row that sees no key is zero, so that large scores of hidden keys do not reach its gradient."""
    seen = visible(inputs.mask, shapes_of(inputs))
    return inputs.query if seen is None else torch.where(seen.any(-1, keepdim=True), inputs.query, 0.0)


def one_call(inputs: AttentionInputs, call: FunctionCall, layout: str, rows_before: int = 0, rows_left: int = 0) -> Rendering:
    """A rendering of one call. The first `rows_before` rows of its query are added ones; it lacks the first `rows_left` rows of
    the request, which see no key."""

    def read(results: list[Any]) -> tuple[Tensor, Tensor | None]:
        B, H, Q, _ = inputs.query.shape
        sizes = {"B": B, "H": H, "S": Q + rows_before - rows_left, "D": inputs.value.shape[3]}
        output = tensor_of(results[0], inputs, layout, sizes)[:, :, rows_before:]
        return torch.nn.functional.pad(output, (0, 0, rows_left, 0)), None

    def place(b: int, h: int, i: int) -> tuple[int, tuple[int, ...]] | None:
        at = {"B": b, "H": h, "S": i + rows_before - rows_left}
        return None if i < rows_left else (0, tuple(at[axis] for axis in layout.split() if axis != "D"))

    return Rendering((call,), read, place)


def tensor_of(result: Any, inputs: AttentionInputs, layout: str, sizes: dict[str, int]) -> Tensor:
    """The output (B,H,Q,V) that a function returned in its layout. Raises Violation."""
    output = result[0] if isinstance(result, (tuple, list)) and result else result
    axes = layout.split()
    want = tuple(sizes[axis] for axis in axes)
    named = f"({', '.join(axes)}) = {want}"
    if not isinstance(output, Tensor):
        raise Violation("contract", f"returned a {type(output).__name__}, expected a tensor {named}", tensor="output")
    if tuple(output.shape) != want:
        raise Violation("contract", f"returned a tensor {tuple(output.shape)}, expected {named}", tensor="output")
    return output.permute([axes.index(axis) for axis in ("B", "H", "S", "D")]) if "B" in axes else output


def laid(layout: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors (B,H,S,D) in a layout."""
    return tuple(tensor.permute(["BHSD".index(axis) for axis in layout.split()]) for tensor in tensors)


def masked(
    inputs: AttentionInputs, takes: Takes, layout: str, mask: str, write: Callable[[], Any], keywords: dict[str, Any]
) -> Rendering:
    """A call with `is_causal` where that says it all, otherwise with the mask that `write` makes."""
    causal, offset = inputs.mask.terms() == {"causal"} and inputs.bias is None, inputs.mask.offset
    if causal and takes("is_causal") and (from_position_0(inputs) or not takes(mask)) and not isinstance(offset, Tensor):
        # Added queries in front, or fewer queries, move the first position to 0: the function has no other way to say it.
        before, left = max(offset or 0, 0), min(max(-(offset or 0), 0), inputs.query.shape[2] - 1)
        query = torch.nn.functional.pad(inputs.query[:, :, left:], (0, 0, before, 0))
        call = FunctionCall(laid(layout, query, inputs.key, inputs.value), {**keywords, "is_causal": True})
        return one_call(inputs, call, layout, before, left)
    written = write()
    call = FunctionCall(laid(layout, query_of(inputs), inputs.key, inputs.value), keywords)
    if written is not None:
        call.keywords[mask] = written
    return one_call(inputs, call, layout)


def sdpa(inputs: AttentionInputs, takes: Takes) -> Rendering:
    keywords: dict[str, Any] = {"dropout_p": inputs.dropout} if inputs.dropout else {}
    if inputs.query.shape[1] != inputs.key.shape[1] and takes("enable_gqa"):
        keywords["enable_gqa"] = True
    write = partial(shown, inputs) if inputs.bias is None else partial(additive, inputs)
    return masked(inputs, takes, "B H S D", "attn_mask", write, keywords)


def additive_mask(inputs: AttentionInputs, takes: Takes) -> Rendering:
    mask, query = additive(inputs), inputs.query
    if mask is None:
        mask = torch.zeros(1, 1, query.shape[2], inputs.key.shape[2], dtype=query.dtype, device=query.device)
    return one_call(inputs, FunctionCall((query_of(inputs), inputs.key, inputs.value, mask)), "B H S D")


def xformers(inputs: AttentionInputs, takes: Takes) -> Rendering:
    keywords: dict[str, Any] = {"p": inputs.dropout} if inputs.dropout else {}
    bias = additive(inputs)
    if bias is not None:
        keywords["attn_bias"] = bias.expand(*inputs.query.shape[:3], inputs.key.shape[2])
    call = FunctionCall(laid("B S H D", query_of(inputs), inputs.key, inputs.value), keywords)
    return one_call(inputs, call, "B S H D")


class AttentionModule(torch.nn.Module):
    """What a function of transformers reads of the layer that calls it."""

    def __init__(self, groups: int, training: bool) -> None:
        super().__init__()
        self.num_key_value_groups, self.is_causal, self.training = groups, False, training
        self.layer_idx, self.config = 0, None


def huggingface(inputs: AttentionInputs, takes: Takes) -> Rendering:
    mask = additive(inputs, torch.finfo(inputs.query.dtype).min)
    if mask is not None:
        mask = mask.expand(inputs.query.shape[0], *mask.shape[1:])
    module = AttentionModule(inputs.query.shape[1] // inputs.key.shape[1], inputs.dropout > 0)
    keywords = {"dropout": inputs.dropout, "scaling": inputs.scale}
    call = FunctionCall((module, query_of(inputs), inputs.key, inputs.value, mask), keywords)
    return one_call(inputs, call, "B S H D")


def numpy(inputs: AttentionInputs, takes: Takes) -> Rendering:
    def array(tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor.detach().cpu().contiguous().numpy()

    bias = bias_of(inputs)
    keywords = {} if bias is None else {"bias": array(bias.expand(*inputs.query.shape[:3], inputs.key.shape[2]))}
    rendering = masked(inputs, takes, "B S H D", "mask", lambda: shown(inputs), keywords)
    (call,) = rendering.calls
    arguments = tuple(array(tensor) for tensor in call.arguments)
    arrays = {name: array(value) if isinstance(value, Tensor) else value for name, value in call.keywords.items()}

    def read(results: list[Any]) -> tuple[Tensor, Tensor | None]:
        import numpy

        output = torch.from_numpy(numpy.array(results[0]))  # a copy: arrays of other frameworks are read-only
        return rendering.read([output.to(inputs.query.device)])

    return Rendering((FunctionCall(arguments, arrays),), read, rendering.place)


BY_MASK = {"mask": ("attn_mask",), "padding": ("attn_mask",), "bias": ("attn_mask",), "bias_backward": ("attn_mask",)}
NAMES = ("query", "key", "value")
DENSE = (
    Signature(
        "sdpa",
        "attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False)",
        "B H S D", NAMES, features(),
        {**BY_MASK, "causal": ("is_causal", "attn_mask"), "dropout": ("dropout_p",)}, sdpa, "scale",
    ),
    Signature(
        "additive_mask", "attention(query, key, value, mask)     # mask is added to the scores, -inf hides", "B H S D", NAMES,
        features("dropout"), {}, additive_mask, "scale",
    ),
    Signature(
        "huggingface",
        "attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs) -> (output, weights)",
        "B S H D", NAMES, features(), {}, huggingface, "scaling", input_layout="B H S D",
    ),
    Signature(
        "xformers", "attention(query, key, value, attn_bias=None, p=0.0, scale=None)", "B S H D", NAMES, features("gqa"),
        {**dict.fromkeys((*BY_MASK, "causal"), ("attn_bias",)), "dropout": ("p",)}, xformers, "scale",
    ),
    Signature(
        "numpy", "attention(query, key, value, bias=None, mask=None, scale=None, is_causal=False)     # NumPy arrays",
        "B S H D", NAMES, features("dropout", "backward", "bias_backward"),
        {"mask": ("mask",), "padding": ("mask",), "bias": ("bias",), "causal": ("is_causal", "mask")}, numpy, "scale",
        dtypes=("float32", "float16"),
    ),
)  # fmt: skip
