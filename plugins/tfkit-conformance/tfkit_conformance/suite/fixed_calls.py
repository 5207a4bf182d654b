"""Calls that are always made, because a draw seldom meets them: each crosses many sizes at which a kernel may change its path.

    lengths        the last block of 16, 32, 48, 64, 96, 128, 192 queries and keys has one element, is full, or lacks one; of
                   256, and of the sizes that the options name, it has one element
    batch, heads   more than a warp, a block and a byte of them
    decoding       few queries in each of many rows, where matrix products become many small ones; one query of many heads
    head dims      1 and odd ones, those between powers of two
    equal sizes    Q = B, Q = H, K = D, with shared heads H = D and G = D: nothing can be guessed from a shape
    numbers        positions beyond 2^15, 2^24 and 2^31, segment numbers beyond a byte, scores far from zero, sums beyond the
                   range of float16, weights that float32 does not hold
    tensors        int32 and int8 lengths, int32 segments, a bias whose axes are permuted
    axes           a dense bias and `visible` that differ along any of the axes B, H, Q, K and are the same along the others
    scores         a score function, where any is declared: the dot product with the other sign, which the reference has, too

Output, log-sum-exp and gradients are held to the bound; the output without gradients, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, DenseBias, Mask, Range

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.compare import request_of
from ..attention.evaluated import Call, run
from ..attention.score_functions import negated_product, negated_product_of_wide_keys, without_score
from ..finding import Violation
from .layers import within

CHECK = "fixed calls"
SUMMARY = "calls that cross sizes at which kernels change their path, within the error bound"
LONG = 385
"""One more than 3 blocks of 128, 4 of 96, 6 of 64, 8 of 48, 12 of 32, 24 of 16 and 2 of 192."""
LONGEST = 769
"""One more than 3 blocks of 256 as well."""
MANY = 256
"""So many heads of all batch rows are many."""
AXES = "BHQK"
FAR_SCORE = {"float16": 2.0e4, "bfloat16": 1.0e5, "float32": 1.0e5, "float64": 1.0e5}
"""Beyond the range of float16 where the dtype allows it."""
MOST_BLOCK = 256
"""Larger blocks that the options name are not walked: the reference would take too long."""


@dataclass(frozen=True)
class FixedCall:
    """A call with what is particular to it in words.

    Args:
        words: "33 heads", for instance.
        equal: the same call without a score function.
        case: the case that it was made from.
        long: a slow kernel, such as an interpreted one, may take too long for it.
    """

    words: str
    inputs: AttentionInputs
    equal: AttentionInputs
    case: Case
    long: bool


def fixed_calls(subject: BackendUnderTest, dtype: str, numbers_only: bool = False) -> Iterator[FixedCall]:
    """The calls that the declaration accepts, those with gradients where it has a backward of them; or only those of unusual
    numbers."""
    calls = _of_unusual_numbers(subject, _row(subject, dtype)) if numbers_only else _calls(subject, dtype)
    for words, case, change in calls:
        full = replace(case, gradients=subject.capabilities.backward)
        for tried in (full, replace(full, gradients=False)):
            inputs = tried.inputs(subject.device)
            inputs = replace(inputs, **change(inputs)) if change is not None else inputs
            if subject.accepts(request_of(inputs)):
                equal = without_score(inputs)
                long = min(case.Q, case.K) >= LONGEST or case.B * case.H >= MANY
                yield FixedCall(words, inputs, equal, tried, long)
                break


def check_fixed_call(subject: BackendUnderTest, fixed: FixedCall) -> float:
    """The largest error of a call as a share of its bound. Raises Violation for a wrong one."""
    form, worst = "", 0.0
    try:
        for result in _results(subject, fixed):
            form, compared = result[0], result[1:]
            worst = max(worst, within(CHECK, *compared))
    except Violation as violation:
        sizes = f"B, H, G, Q, K, D, V = {_sizes(fixed.inputs)}"
        message = f"with {fixed.words} ({sizes}){form}: {violation.message}"
        raise type(violation)(CHECK, message, **violation.numbers) from violation
    return worst


def _results(subject: BackendUnderTest, fixed: FixedCall) -> Iterator[Compared]:
    call, equal = (Call(subject, inputs, fixed.case.grad_output(subject.device)) for inputs in (fixed.inputs, fixed.equal))
    return compared(call, fixed.case.gradients, CHECK, equal)


def compared(call: Call, gradients: bool, check: str, equal: Call | None = None) -> Iterator[Compared]:
    """The results of a call: alone, without gradients, with the log-sum-exp.

    Args:
        call: the call.
        gradients: whether the gradients are compared.
        check: the name of the check.
        equal: a call whose results are right for this one; by default the call itself.
    """
    wanted, bound = (equal or call).reference, (equal or call).bounds
    yield "", "output", call.output.output, wanted.output, bound.output
    if call.inputs.return_weights and call.output.weights is not None:
        yield "", "weights", call.output.weights, wanted.weights, bound.weights
    if gradients:
        yield from gradients_compared(call, equal or call)
        with torch.no_grad():
            output = run(call.subject, call.inputs, check).output
        yield " under no_grad", "output", output, wanted.output, bound.output
    asked = replace(call.inputs, return_lse=True)
    if call.subject.accepts(request_of(asked)):
        beside = run(call.subject, asked, check)
        yield " with the log-sum-exp", "output", beside.output, wanted.output, bound.output
        if beside.lse is not None:
            yield " with the log-sum-exp", "lse", beside.lse, wanted.lse, bound.lse


def gradients_compared(call: Call, equal: Call) -> Iterator[Compared]:
    """The gradients of a call; those of `equal` are right."""
    for name, gradient in call.gradients.items():
        yield "", f"gradient of {name}", gradient, equal.reference.gradients[name], equal.bounds.gradients[name]


Compared = tuple[str, str, Tensor, Tensor, Tensor]
"""The form of the call, the name of a result, the result, the right one, its bound."""
Change = Any
"""From the inputs of a case to the fields that differ."""


def _calls(subject: BackendUnderTest, dtype: str) -> Iterator[tuple[str, Case, Change]]:
    can = subject.capabilities
    assert can.head_dim is not None
    assert can.query_length is not None
    assert can.key_length is not None
    row = _row(subject, dtype)
    small = replace(row, H=1, G=1)
    plain, D = replace(small, Q=1, K=1), row.D

    def sized(case: Case, Q: int, K: int) -> Case:
        return replace(case, Q=_length(Q, can.query_length), K=_length(K, can.key_length))

    causal = replace(plain, causal=True, offset=0)
    yield "one element in the last block", sized(causal, LONG, LONG), None
    yield "one element in the last block", sized(causal, LONGEST, LONGEST), None
    yield "full last blocks", sized(replace(plain, key_lengths=(LONG - 11,)), LONG - 1, LONG - 1), None
    yield "one element missing in the last block", sized(replace(causal, window=(130, 0)), LONG - 2, LONG - 2), None
    yield "many queries and few keys", sized(plain, LONG, 17), None
    yield "keys that are hidden in the middle", sized(replace(plain, visible="QK"), 5, LONGEST), _hidden_middle
    yield "one query and many keys", sized(replace(causal, offset=2049), 1, 2050), None
    padded = replace(causal, B=2, key_lengths=(193, 129), query_lengths=(193, 129))
    yield "rows that end in one element of a block", sized(padded, 200, 200), None
    for block in _declared_blocks(subject):
        for blocks in (1, 2, 3):
            words = f"{blocks} blocks of {block} and one element"
            yield words, sized(causal, blocks * block + 1, blocks * block + 1), None

    yield "33 heads", replace(small, H=33, G=33), None
    yield "66 heads that share 11", replace(small, H=66, G=11), None
    if 1 in can.query_length:
        yield "one query of 66 heads that share 2", replace(small, H=66, G=2, Q=1), None
        yield (
            "one query of 16 heads that share 2, and thousands of keys",
            replace(sized(small, 1, 4500), H=16, G=2, regime="huge"),
            None,
        )
    wide = next((size for size in (256, 128, 64) if size in can.head_dim), D)
    yield "12 heads of many features", replace(sized(small, 70, 6), H=12, G=12, D=wide, V=wide), None
    yield "a batch of 70", replace(small, B=70, H=2, G=2), None
    yield "a batch of 300", replace(small, B=300), None
    yield "a batch of 37 with 19 heads", replace(small, B=37, H=19, G=19), None
    for case in _decoding(replace(small, B=MANY // 2 + 2, H=2, G=2)):
        if case.Q in can.query_length and case.K in can.key_length:
            yield f"few queries in each of {case.B} rows", case, None
    for size in (1, 2, 3, 5, 7, 9, 17, 33, 40, 65, 72, 100, 129, 160, 192, 224, 255, 256):
        if size in can.head_dim:
            yield f"head dim {size}", replace(small, D=size, V=size), None
            if can.value_dim_differs:
                yield f"value dim {size}", replace(small, V=size), None
    same = replace(plain, B=D, H=D, G=D, Q=D, K=D)
    if D <= 16:
        for axes in ("BQ", "HK", "Q.K", "BK", "HQ"):
            yield "equal sizes", replace(same, visible=axes), None
        yield "equal sizes", replace(same, bias="dense", bias_axes="HQK"), None
        yield "as many heads as features and keys, half as many for keys", replace(same, G=max(D // 2, 1)), None
        yield "as many heads for keys as features and queries, twice as many for queries", replace(same, H=2 * D), None

    yield from _of_unusual_numbers(subject, row)
    yield "segment numbers beyond a byte", replace(row, B=2, segments=3), _segments(1000, 256)
    yield "segment numbers beyond 2^16", replace(row, B=2, segments=3), _segments(70_000, 2**16)
    yield "int32 segments", replace(row, B=2, segments=3), _segments(0, 1, torch.int32)
    lengths = replace(row, B=2, key_lengths=(2, row.K), query_lengths=(1, row.Q))
    yield "int32 lengths", lengths, _narrow(torch.int32)
    yield "int32 offsets", replace(lengths, causal=True, offset=(1, 3)), _narrow(torch.int32)
    yield (
        "int8 lengths beside more keys than int8 holds",
        sized(replace(plain, key_lengths=(100,)), 2, 140),
        _narrow(torch.int8),
    )
    dense = replace(row, B=2, bias="dense", bias_axes="HQK", bias_gradient="dense" in can.bias_gradient)
    yield "a bias whose axes are permuted", dense, _permuted_bias
    yield from _along_axes(replace(row, B=2, H=6, G=3 if can.grouped_queries else 6), bool(can.bias_gradient))
    if "*" in can.scores:
        for scored in (row, replace(row, H=4, causal=True, offset=2), replace(row, bias="dense", softcap=5.0)):
            yield "a score function", scored, negated_product
        yield "a score function of keys with more features than queries", row, negated_product_of_wide_keys


def _row(subject: BackendUnderTest, dtype: str) -> Case:
    """A small call of two heads."""
    can = subject.capabilities
    assert can.head_dim is not None
    D = next((size for size in (8, 16, 32, 64, 128) if size in can.head_dim), can.head_dim.minimum)
    Q, K = _length(4, can.query_length), _length(6, can.key_length)
    return Case(B=1, H=2, G=2, Q=Q, K=K, D=D, V=D, dtype=dtype, seed=5)


def _length(wanted: int, allowed: Range | None) -> int:
    assert allowed is not None
    return next((size for size in range(wanted, 0, -1) if size in allowed), allowed.minimum)


def _of_unusual_numbers(subject: BackendUnderTest, row: Case) -> Iterator[tuple[str, Case, Change]]:
    """Each dtype has errors of its own: positions that it does not hold, sums that are beyond its range."""
    can = subject.capabilities
    assert can.head_dim is not None
    yield from _at_far_positions(row)
    for far in (-FAR_SCORE[row.dtype], FAR_SCORE[row.dtype]):
        yield f"scores near {far:g}", replace(row, bias="dense", bias_axes="HQK"), _shifted_bias(far)
    wide = next((size for size in (128, 64, 32) if size in can.head_dim), row.D)
    yield "large gradients of many features", replace(row, D=wide, V=wide, regime="high_gradients"), None
    yield "large keys and a small scale", replace(row, scale=1e-4, regime="high_gradients"), _large_keys
    yield "a bias of -1e9 at some keys", replace(row, bias="dense", bias_axes="HQK"), _hiding_bias
    if row.dtype == "float64":
        many = replace(row, K=_length(LONG, can.key_length), bias="dense", bias_axes="K")
        yield "values of 1e40 with weights of e^-95", many, _faint_but_large


def _at_far_positions(row: Case) -> Iterator[tuple[str, Case, Change]]:
    """Beyond 15, 24 and 31 bits; of all batch rows or of one. A slope times a far distance is known well enough in float64
    alone."""
    for offset in (2**15 + 3, 2**24 + 1, 2**31 + 5):
        words = f"positions from {offset} on"
        for bias in ("distance", "linear") if offset < 2**20 or row.dtype == "float64" else ("distance",):
            yield words, replace(row, bias=bias, offset=offset), None
            yield words, replace(row, bias=bias, B=2, offset=(offset, 0)), None
        yield words, replace(row, causal=True, offset=offset), None
        yield words, replace(row, causal=True, B=2, offset=(0, offset)), None
        yield words, replace(row, window=(offset + 1, 0), offset=offset), None


def _along_axes(row: Case, gradients: bool) -> Iterator[tuple[str, Case, Change]]:
    """A bias for each choice of axes along which it differs, and beside it a mask that differs along the other axes."""
    for number in range(1 << len(AXES)):
        bias = "".join(axis for place, axis in enumerate(AXES) if number >> place & 1)
        mask = "".join(axis for axis in AXES if axis not in bias)
        words = f"a bias that differs along {' and '.join(bias) or 'no axis'}"
        biased = replace(row, bias="dense", bias_axes=bias, bias_gradient=gradients)
        yield words, biased, None
        yield words, replace(biased, visible=mask), None


def _decoding(rows: Case) -> Iterator[Case]:
    """One query or a few, one or more query heads for a key head, few keys or more; without a mask, with one, with a bias."""
    step, chunk, short = (replace(rows, Q=Q, K=K) for Q, K in ((1, 40), (4, 40), (8, 9)))
    for case in (step, chunk, short, replace(rows, H=4, Q=3, K=40)):
        yield case
        yield replace(case, key_lengths=tuple(1 + row % case.K for row in range(case.B)))
        yield replace(case, bias="dense", bias_axes="HQK")


def _declared_blocks(subject: BackendUnderTest) -> list[int]:
    """The whole numbers among the options that may be sizes of blocks."""
    values = subject.options.model_dump().values()
    return sorted({value for value in values if isinstance(value, int) and 1 < value <= MOST_BLOCK})


def _segments(first: int, step: int, dtype: torch.dtype = torch.int64) -> Change:
    """Segment numbers from `first` on, in steps: those of one width are equal in their low bits."""

    def change(inputs: AttentionInputs) -> dict[str, Mask]:
        mask = inputs.mask
        assert mask.query_segments is not None
        assert mask.key_segments is not None
        query, key = ((tensor * step + first).to(dtype) for tensor in (mask.query_segments, mask.key_segments))
        return {"mask": replace(mask, query_segments=query, key_segments=key)}

    return change


def _narrow(dtype: torch.dtype) -> Change:
    """Offsets and lengths of another integer type."""

    def change(inputs: AttentionInputs) -> dict[str, Mask]:
        terms = {name: getattr(inputs.mask, name) for name in ("offset", "key_lengths", "query_lengths")}
        narrow: dict[str, Any] = {name: term.to(dtype) for name, term in terms.items() if isinstance(term, Tensor)}
        return {"mask": replace(inputs.mask, **narrow)}

    return change


def _permuted_bias(inputs: AttentionInputs) -> dict[str, DenseBias]:
    """The bias (1,H,Q,K) as a table looked up by pairs leaves it: its heads are the innermost axis in memory."""
    assert isinstance(inputs.bias, DenseBias)
    values = inputs.bias.values.detach().permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    return {"bias": DenseBias(values.requires_grad_(inputs.bias.values.requires_grad))}


def _shifted_bias(by: float) -> Change:
    """All scores of the second head far from zero: a row's maximum may not begin at a number of the kernel's choice."""

    def change(inputs: AttentionInputs) -> dict[str, DenseBias]:
        assert isinstance(inputs.bias, DenseBias)
        values = inputs.bias.values.detach().clone()
        values[:, 1] += by
        return {"bias": DenseBias(values)}

    return change


def _hiding_bias(inputs: AttentionInputs) -> dict[str, DenseBias]:
    """The bias by which many models hide keys: every third key has it."""
    assert isinstance(inputs.bias, DenseBias)
    values = inputs.bias.values.detach().clone()
    values[..., ::3] = max(-1e9, torch.finfo(values.dtype).min)
    return {"bias": DenseBias(values)}


def _hidden_middle(inputs: AttentionInputs) -> dict[str, Mask]:
    """No query sees a key between the first 100 and the last 60."""
    assert inputs.mask.visible is not None
    visible = torch.ones_like(inputs.mask.visible)
    visible[..., 100:-60] = False
    return {"mask": replace(inputs.mask, visible=visible)}


def _large_keys(inputs: AttentionInputs) -> dict[str, Tensor]:
    """Gradients of queries are large before they are scaled, and small after."""
    key = inputs.key.detach() * 4000.0
    return {"key": key.requires_grad_(inputs.key.requires_grad)}


def _faint_but_large(inputs: AttentionInputs) -> dict[str, Any]:
    """The first half of the keys has weights of e^-95 and values of 1e40: it decides the output."""
    half = inputs.key.shape[2] // 2
    value = inputs.value.detach().clone()
    value[:, :, :half] *= 1e40
    bias = torch.zeros(1, 1, 1, inputs.key.shape[2], device=value.device)
    bias[..., :half] = -95.0
    return {"value": value.requires_grad_(inputs.value.requires_grad), "bias": DenseBias(bias)}


def _sizes(inputs: AttentionInputs) -> str:
    B, H, Q, D = inputs.query.shape
    G, K, V = inputs.value.shape[1:]
    return ", ".join(map(str, (B, H, G, Q, K, D, V)))
