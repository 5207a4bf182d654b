"""Calls near the numbers of the kernel's source, and calls with one size far out, with features drawn at random.

    near      each number c of the source, and c - 1, c + 1, 2 c, 2 c + 1, as every size that a call has: lengths, batch, heads,
              groups, dims, rows of all heads, offsets, windows, lengths of rows, tables of distances, scale and softcap
    far       every such size drawn on a logarithmic scale up to its limit, one query with thousands of keys for instance

A kernel may change its path at any size. Fixed sizes find the paths at the sizes that we thought of; these find the others.

Of each call output, log-sum-exp and gradients are held to the bound. Around it nothing may change: the inputs, the output of
the call before it, the settings and the random numbers of the process. Some calls are made again with other numbers in tensors
of the same sizes, some with almost the same, some with other numbers in the same tensors, some after the same call under
inference_mode, some have another call before their backward pass or beside it in another thread: what a kernel keeps between
calls shows there. In some, memory that nobody wrote holds NaN. Some are made with dropout, whose draw is read out.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tfkit.inspection import BIAS_KINDS, MASK_TERMS, SCORE_SETTINGS
from tfkit.plugin import AttentionInputs

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.compare import leaves_of, request_of
from ..attention.elements import GRAD_LAYOUTS, LAYOUTS, REGIMES
from ..attention.evaluated import Call, Evaluated, run
from ..differences import differing
from ..finding import Inconclusive, Violation
from ..relations import fit
from ..relations.dropout import DROPOUT
from ..relations.gradients import GRADIENTS
from ..relations.modes import MODES
from ..relations.order import ORDER
from ..relations.paired_calls import leaf_copies, named
from ..relations.relation import Relation
from ..source import Source
from .fixed_calls import compared, gradients_compared, without_score
from .layers import mask_tensors, process_settings, within
from .spellings import invert, overwrite, respelled

CHECK = "guided calls"
SUMMARY = "calls near the numbers of the source and calls of unusual sizes, within the error bound, and nothing else changes"
BUDGET = {"quick": 1_000, "standard": 4_000, "deep": 20_000}
"""So many calls near numbers of the source are made at most, and an eighth as many of unusual sizes; over all dtypes."""
NEAR_FOR_FAR = 3
"""Calls near a number of the source that are made before one of an unusual size."""
MAX_TURNS = 4
"""Where there are few numbers, the calls near each are drawn anew so often."""
MAX_PAIRS = 250_000
"""The largest B * Q * K: the reference computes visibility key by key in Python."""
MAX_PRODUCTS = 12_000_000
"""The largest B * H * Q * K * (D + V)."""
MAX_REPEATED = 1_000_000
"""The largest such product of a call that is made again, and of one with two sizes far out: a larger one takes the time of many
others."""
MAX_THREADED = 50_000
"""The largest such product of a call with two threads of torch, which it does not use: larger ones wait for each other. Also of
one whose second derivatives are computed."""
MAX_READINGS = 16
"""A draw of dropout is read out by at most so many calls."""
MIN_SETTING, MAX_SETTING = 1e-6, 1e4
CALLS_AFTER = 8
ALMOST = 1 + 2.0**-12
"""The factor of numbers that are almost the same."""
EVERY = {"two_threads": 19, "backward_twice": 11, "checkpoint": 13, "one_draw_per_call": 2, "same_state_same_draw": 5,
         "weights_carry_gradients": 3, "deterministic_backward": 3, "batch_invariant": 3, "double_backward": 7}  # fmt: skip
_KNOWN = (*MODES, *ORDER, *GRADIENTS, *DROPOUT)
RELATIONS = tuple((relation, EVERY[relation.name]) for relation in _KNOWN if relation.name in EVERY)
"""Relations, each with a number n: one of n calls is held to it."""
DIFFERENT = 61
"""So many batch rows have lengths of their own; those after them have the same again."""
SMALL = 5
"""Numbers below are sizes that every draw has."""

Sizes = Callable[[random.Random, int], dict[str, Any]]


@dataclass(frozen=True)
class Axis:
    """One size of a call: `sizes` gives the fields of a case in which it is a number, `most` is the largest that is drawn."""

    words: str
    most: int
    sizes: Sizes


def _window(draw: random.Random, size: int) -> dict[str, Any]:
    window = draw.choice([(size, None), (None, size), (size, 0), (0, size), (size, size)])
    return {
        "window": window,
        "K": size + draw.randint(2, 9),
        "Q": draw.choice([1, 3, size + 5]),
        "offset": draw.randint(0, size),
    }


def _edge(draw: random.Random, size: int) -> dict[str, Any]:
    """The first key that one query sees, or the last one."""
    if draw.random() < 0.3:
        return {"causal": True, "offset": size, "K": size + draw.randint(1, 40), "Q": 1}
    left = draw.randint(0, 600)
    return {"window": (left, 0), "offset": size + left, "K": size + left + draw.randint(1, 40), "Q": 1}


def _blind(draw: random.Random, size: int) -> dict[str, Any]:
    """The first queries see no key."""
    return {"causal": True, "offset": -size, "Q": size + draw.randint(1, 9), "K": draw.randint(2, 9)}


def _far(draw: random.Random, size: int) -> dict[str, Any]:
    """Positions that float32, or 32 bits, do not hold. Distances beyond 2^31 are left to the masks."""
    power, sign = draw.choice([24, 24, 31, 32]), draw.choice([1, 1, -1])
    offset, bias = sign * ((1 << power) + size), draw.choice(["linear", "distance"]) if power == 24 else "distance"
    table = {"bias_low": -offset - 6, "bias_values": 16} if draw.random() < 0.5 else {}  # the distances are in its middle
    return {"offset": offset, "bias": bias, "causal": sign > 0, "K": 9, **table}


def _rows(draw: random.Random, size: int) -> dict[str, Any]:
    heads = draw.choice([17, 64, 255])
    return {"H": heads, "G": heads, "B": -(-size // heads), "Q": 1, "K": 2}


def _rows_of_a_key_head(draw: random.Random, size: int) -> dict[str, Any]:
    heads = draw.choice([3, 8, 40])
    return {"G": 1, "H": heads, "B": 1, "Q": -(-size // heads), "K": 2}


def _scores(draw: random.Random, size: int) -> dict[str, Any]:
    """Of all heads. Beside one query row less they may be computed at once."""
    heads = draw.choice([3, 8])
    side = max(1, round((size / heads) ** 0.5))
    return {"B": 1, "H": heads, "G": heads, "K": side, "Q": -(-size // (heads * side)), "bias": "dense", "bias_axes": "HQK"}


def _lengths(draw: random.Random, size: int) -> dict[str, Any]:
    K = size + draw.randint(1, 12)
    return {"B": 2, "K": K, "key_lengths": (size, draw.randint(1, K)), "Q": draw.choice([1, 2, 6])}


def _table(draw: random.Random, size: int) -> dict[str, Any]:
    return {"bias": "distance", "bias_values": size, "bias_low": -draw.randint(0, size), "K": min(size + 3, 400), "Q": 3}


AXES = (
    Axis("key length", 8300, lambda draw, size: {"K": size, "Q": draw.randint(1, 3)}),
    Axis("query length", 1100, lambda draw, size: {"Q": size, "K": draw.randint(2, 9)}),
    Axis("query and key length", 420, lambda draw, size: {"Q": size, "K": size}),
    Axis("batch size", 600, lambda draw, size: {"B": size}),
    Axis("number of heads", 300, lambda draw, size: {"H": size, "G": size}),
    Axis("number of key heads", 70, lambda draw, size: {"G": size, "H": size * draw.choice([2, 3])}),
    Axis("number of query heads", 70, lambda draw, size: {"G": draw.choice([1, 2, 3]), "H": size}),
    Axis("batch size times heads", 70_000, _rows),
    Axis("query rows of a key head", 40_000, _rows_of_a_key_head),
    Axis(
        "queries times keys",
        200_000,
        lambda draw, size: {"Q": max(1, round(size**0.5)), "K": -(-size // max(1, round(size**0.5)))},
    ),
    Axis("number of scores", 600_000, _scores),
    Axis("head dim", 320, lambda draw, size: {"D": size, "V": size}),
    Axis("value dim", 320, lambda draw, size: {"V": size}),
    Axis("edge of the visible keys", 420, _edge),
    Axis("queries before the first key", 600, _blind),
    Axis("far position", 8, _far),
    Axis("offset", 1 << 25, lambda draw, size: {"offset": size * draw.choice([1, 1, -1]), "K": draw.randint(2, 40)}),
    Axis("window", 600, _window),
    Axis("visible keys of a row", 600, _lengths),
    Axis("number of distances", 700, _table),
)


def guided_calls(subject: BackendUnderTest, dtype: str, profile: str, seed: int) -> Iterator[tuple[str, Case]]:
    """What is particular to a call in words, and the call."""
    draw = random.Random(f"{seed} {dtype}")
    budget = BUDGET[profile]
    near = [*_near_integers(subject.source), *_near_floats(subject.source)]
    near = near[:budget] * max(1, min(MAX_TURNS, budget // max(1, len(near))))
    far = [axis for _ in range(budget // 8 // len(AXES) + 1) for axis in AXES]
    while near or far:  # side by side, because a slow kernel does not get to the end
        for words, axis, size in near[: NEAR_FOR_FAR if far else None]:
            yield from _called(subject, dtype, draw, words, axis, size)
        near = near[NEAR_FOR_FAR:] if far else []
        for axis in far[:1]:
            size = round(draw.uniform(axis.most / 2, axis.most) if draw.random() < 0.4 else axis.most ** draw.random())
            yield from _called(subject, dtype, draw, f"{axis.words} {size:,}", axis, size)
        far = far[1:]


def _near_integers(source: Source) -> Iterator[tuple[str, Axis, int]]:
    for number in source.integers:
        for size in (number - 1, number, number + 1, 2 * number, 2 * number + 1) if number >= SMALL else ():
            for axis in AXES:
                if size <= 4 * axis.most:
                    yield f"{axis.words} {size:,}, near {number:,} of the source", axis, size


def _near_floats(source: Source) -> Iterator[tuple[str, Axis, int]]:
    """As settings of the scores, and so that a quotient by a setting is the number. Rates of dropout are drawn where a draw is
    read out."""
    for number in source.floats:
        for value in (number * 0.999, number, number * 1.001, 0.9 / number, 1.1 / number):
            if not MIN_SETTING < value < MAX_SETTING:
                continue
            for name in ("scale", *(setting.name for setting in SCORE_SETTINGS)):
                axis = Axis(name, 0, lambda draw, size, name=name, value=value: {name: value})  # type: ignore[misc]
                yield f"{name} {value:g}, near {number:g} of the source", axis, 0


def _called(
    subject: BackendUnderTest, dtype: str, draw: random.Random, words: str, axis: Axis, size: int
) -> Iterator[tuple[str, Case]]:
    """The call with as many features as the declaration takes beside this size, or nothing."""
    G = draw.randint(1, 3)
    dims = [dim for dim in (8, 16, 32, 64, 128, 256) if subject.capabilities.head_dim and dim in subject.capabilities.head_dim]
    least = subject.capabilities.head_dim.minimum if subject.capabilities.head_dim else 1
    D = dims[0] if dims else least
    few = Case(B=draw.choice([1, 1, 2]), H=G, G=G, Q=draw.choice([1, draw.randint(1, 9), draw.randint(1, 9)]),
               K=draw.randint(2, 20), D=D, V=D, dtype=dtype, seed=draw.randrange(1 << 16))  # fmt: skip
    sharing = draw.randint(2, 12) if subject.capabilities.grouped_queries and draw.random() < 0.4 else 1
    many = replace(few, B=draw.randint(3, 20) if draw.random() < 0.3 else few.B, H=sharing * G)
    other = draw.choice(AXES)
    known = [number for number in subject.source.integers if number < other.most]
    second = draw.choice(known) * draw.choice([1, 1, 2]) + draw.randint(-1, 1) if known and draw.random() < 0.5 else None
    also = other.sizes(draw, second or round(other.most ** draw.random())) if draw.random() < 0.5 else {}
    sizes = axis.sizes(draw, size)
    most = max(MAX_REPEATED, _products(_sized(few, sizes)))
    tries = (_sized(plain, more | sizes) for more in (also, {}) for plain in (many, few, replace(few, D=least, V=least)))
    sized = next((case for case in tries if _affordable(case) and _products(case) <= most), None)
    if sized is None:
        return
    gradients = subject.capabilities.backward
    for tried in (_varied(sized, subject, draw), _varied(sized, subject, draw), sized, replace(sized, bias=None)):
        for case in (replace(tried, gradients=gradients), replace(tried, gradients=False, bias_gradient=False)):
            if subject.accepts(case.request(subject.device)):
                yield words, case
                return


def _sized(case: Case, sizes: dict[str, Any]) -> Case:
    """The case with these sizes, whose query heads are a multiple of the others, and whose rows all have a length."""
    sized = replace(case, **sizes)
    G = max(1, sized.G)
    lengths = (
        None if sized.key_lengths is None else tuple(sized.key_lengths[row % len(sized.key_lengths)] for row in range(sized.B))
    )
    sizes = {axis: max(1, getattr(sized, axis)) for axis in "BQKDV"}
    return replace(sized, G=G, H=G * max(1, sized.H // G), key_lengths=lengths, **sizes)


def _affordable(case: Case) -> bool:
    return case.B * case.Q * case.K <= MAX_PAIRS and _products(case) <= MAX_PRODUCTS


def _products(case: Case) -> int:
    return case.B * case.H * case.Q * case.K * (case.D + case.V)


def _varied(case: Case, subject: BackendUnderTest, draw: random.Random) -> Case:
    """The case with features of the declaration beside those that it has."""
    can = subject.capabilities
    more: dict[str, Any] = {}

    def some(share: float) -> bool:
        return draw.random() < share

    def lengths(longest: int) -> tuple[int, ...]:
        some = [draw.choice([0, longest, longest - 1, draw.randint(-1, longest + 1)]) for _ in range(min(case.B, DIFFERENT))]
        if case.seed % 3 == 0:  # the last row is longer than all others
            some = [*[case.seed % (longest // 2 + 1)] * (case.B - 1), longest]
        return tuple(some[row % len(some)] for row in range(case.B))

    for term in MASK_TERMS:
        if term not in can.mask_terms or getattr(case, term) not in (None, False) or not some(0.25):
            continue
        if term in ("key_lengths", "query_lengths"):
            more[term] = lengths(case.K if term == "key_lengths" else case.Q)
            continue
        more[term] = {
            "causal": True,
            "window": (draw.choice([None, 0, 3, case.K // 2]), draw.choice([0, 1, case.K // 3])),
            "key_visible": draw.choice(["right", "left", "coins"]),
            "segments": draw.randint(1, 3),
            "visible": draw.choice(["BHQK", "HK", "BQ", "BK", "H", "BQK", "HQK", "K"]),
        }[term]
    kinds = [kind for kind in BIAS_KINDS if kind in can.bias_kinds]
    if case.bias is None and kinds and some(0.45):
        more |= {"bias": draw.choice(kinds), "bias_axes": draw.choice(["BHQK", "HQK", "BK", "H", "QK"])}
        more |= {"bias_values": draw.randint(1, 40), "bias_low": draw.randint(-30, 2)}
    bias = more.get("bias", case.bias)
    if bias is not None:
        more |= {"bias_dtype": draw.choice(["float32", "query"]) if bias != "linear" else "float32"}
        more |= {"bias_gradient": bias in can.bias_gradient and some(0.7)}
    moved = bool({"causal", "window"} & ({*more} | case.terms())) or bias in ("linear", "distance")
    if case.offset is None and moved:
        starts = [0, case.K - case.Q, draw.randint(-3, case.K + 2)]
        rows = can.tensor_offset and some(0.3)
        each_row = tuple(starts[(row + case.seed) % 3] + row // 3 for row in range(case.B))
        more |= {"offset": each_row if rows else draw.choice(starts)}
    elif isinstance(case.offset, int) and can.tensor_offset and some(0.3):
        more |= {"offset": tuple(case.offset + draw.randint(-1, 1) for _ in range(case.B))}
    if case.scale is None and some(0.25):
        zero = [0.0] * (subject.kernel is None)  # functions of torch give NaN for it beside a causal flag
        more |= {"scale": draw.choice([-0.5, 0.02, 0.3, 1.0, 2.0, *zero])}
    for setting in SCORE_SETTINGS:
        if setting.declared(can) and getattr(case, setting.name) is None and some(0.2):
            more |= {setting.name: draw.choice([0.1, 0.5, 3.0, 50.0, 10 ** draw.uniform(-5, 3), *setting.examples])}
    more |= {"lse": can.lse and some(0.3), "weights": can.weights != "none" and some(0.15)}
    more |= {"regime": draw.choice(REGIMES) if some(0.25) else case.regime}
    more |= {"layout": draw.choice(LAYOUTS) if some(0.3) else case.layout}
    more |= {"grad_layout": draw.choice(GRAD_LAYOUTS) if some(0.3) else case.grad_layout}
    return replace(case, **more)


class Guided:
    """Makes the calls of a run one after another. It keeps the last results, which no later call may change."""

    def __init__(self, subject: BackendUnderTest) -> None:
        self.subject = subject
        self.last: dict[str, tuple[Tensor, Tensor]] = {}

    def check(self, case: Case) -> float:
        """The largest error of a call, and of those that follow it, as a share of its bound. Raises Violation, Inconclusive."""
        draw, sent = random.Random(case.seed), case.grad_output(self.subject.device)
        other = self._with_other_numbers(case)

        def inputs(case: Case, seed: int = case.seed) -> AttentionInputs:
            return respelled(case.inputs(self.subject.device), random.Random(seed), self.subject)

        first, inference = inputs(case), case.seed % 5 == 2
        threads = 2 if draw.randrange(4) == 0 and _products(case) < MAX_THREADED else torch.get_num_threads()
        with torch_threads(threads), memory_of_nan() if draw.randrange(3) == 0 else nullcontext():
            worst = self._made(first, sent, " after the same call under inference_mode" * inference, inference=inference)
        if _products(case) > MAX_REPEATED:
            return worst
        kind = draw.randrange(12)
        if kind in (0, 1, 2):
            worst = max(
                worst, self._made(inputs(other), other.grad_output(self.subject.device), " after a call of the same sizes")
            )
        elif kind in (3, 4) and overwrite(first, inputs(other)):
            worst = max(worst, self._made(first, sent, " after the numbers in its tensors changed"))
        elif kind in (5, 6, 11):
            between = inputs(other)
            when = " with another call before its backward pass"
            worst = max(worst, self._made(first, sent, when, lambda: run(self.subject, between, CHECK)))
        elif kind == 7 and mask_tensors(first.mask):
            changed = inputs(case)
            when = " after the mask changed before its backward pass"
            worst = max(worst, self._made(changed, sent, when, lambda: invert(changed.mask)))
        elif kind == 8:
            self._check_weights_requested(first)
        elif kind == 9:
            self._check_kept(first, inputs(other))
        elif kind == 10 and first.bias is not None:
            bias = leaves_of(first)["bias"].detach() * ALMOST
            worst = max(worst, self._made(leaf_copies(first, bias=bias), sent, " after a call with almost the same bias"))
        for relation, one_in in RELATIONS:
            if draw.randrange(one_in) == 0:
                worst = max(worst, self._related(relation, case))
        return worst

    def _with_other_numbers(self, case: Case) -> Case:
        """A call of the same sizes, with other numbers in all tensors, and another offset, window, bias or dtype: what a kernel
        keeps shows best where one feature alone is another."""
        other = replace(case, seed=case.seed + 1)
        if case.key_lengths is not None:
            other = replace(other, key_lengths=tuple(max(1, case.K - max(0, length)) for length in case.key_lengths))
        if case.query_lengths is not None:
            other = replace(other, query_lengths=tuple(max(1, case.Q - max(0, length)) for length in case.query_lengths))
        feature, far = case.seed // 5 % 5, (1, 1, 1 << 8, 1 << 16)[case.seed // 25 % 4]
        if case.window is not None and (feature == 0 or case.seed % 2):  # one side alone
            left, right = case.window
            if left is None or (right is not None and case.seed % 4 == 1):
                return replace(other, window=(left, (right or 0) + 1))
            return replace(other, window=(left + 1, right))
        if feature == 1 and case.bias == "distance":
            return replace(other, bias_values=case.bias_values // 2 or 4)
        if feature == 2 and case.bias in ("linear", "distance"):
            changed = replace(other, bias="linear" if case.bias == "distance" else "distance", bias_dtype="float32")
            for tried in (changed, replace(changed, bias_gradient=False)):
                if self.subject.accepts(tried.request(self.subject.device)):
                    return tried
        if feature == 3:  # a bias with the same numbers
            changed = replace(case, dtype="float64" if case.dtype != "float64" else "float32")
            if self.subject.accepts(changed.request(self.subject.device)):
                return changed
        if isinstance(case.offset, tuple):
            return replace(other, offset=tuple(offset + far for offset in case.offset))
        return other if case.offset is None else replace(other, offset=case.offset + far)

    def _made(
        self,
        inputs: AttentionInputs,
        sent: Tensor,
        when: str,
        between: Callable[[], Any] | None = None,
        inference: bool = False,
    ) -> float:
        tensors = [*leaves_of(inputs).values(), *mask_tensors(inputs.mask), sent]
        before = [tensor.detach().clone() for tensor in tensors]
        settings, state, worst, how = process_settings(), _random_states(), 0.0, ""
        call, equal = Call(self.subject, inputs, sent), Call(self.subject, without_score(inputs), sent)
        wants = any(leaf.requires_grad for leaf in leaves_of(inputs).values())
        try:
            if inference:
                with torch.inference_mode():
                    run(self.subject, inputs, CHECK)
            if between is not None:
                _ = call.output, equal.reference.gradients, equal.bounds.gradients  # before a mask changes
                between()
                results = gradients_compared(call, equal) if wants else ()
            else:
                results = compared(call, wants, CHECK, equal)
            for form, name, got, want, bound in results:
                how = form  # for the message of the next comparison that fails, too
                worst = max(worst, within(CHECK, name, got, want, bound))
        except Violation as violation:
            if between is not None and "modified by an inplace operation" in violation.message:
                return worst  # that is an error, as it should be
            raise type(violation)(CHECK, f"{violation.message}{how}{when}", **violation.numbers) from violation
        if between is None:
            self._check_around(tensors, before, settings, state, when)
        for name, (result, kept) in self.last.items():
            if bool(differing(result, kept).any()):
                raise Violation(CHECK, f"the {name} of the call before it changed{when}")
        last = named(call.output, call.gradients if wants else {})
        self.last = {name: (result, result.clone()) for name, result in last.items()}
        return worst

    def _check_kept(self, inputs: AttentionInputs, other: AttentionInputs) -> None:
        """The caller keeps an output while it makes more calls without gradients, as a search does. No tensor requires any."""
        for tensor in (*leaves_of(inputs).values(), *leaves_of(other).values()):
            tensor.requires_grad_(False)
        with torch.no_grad():
            output = run(self.subject, inputs, CHECK).output
            before = output.clone()
            for _ in range(CALLS_AFTER):
                run(self.subject, other, CHECK)
        if not torch.equal(output, before):
            raise Violation(CHECK, f"one of {CALLS_AFTER} calls of the same sizes without gradients changes an earlier output")

    def _check_weights_requested(self, inputs: AttentionInputs) -> None:
        asked = replace(inputs, return_weights=True)
        if self.subject.accepts(request_of(asked)):
            plain = run(self.subject, replace(inputs, return_weights=False), CHECK).output
            if not torch.equal(run(self.subject, asked, CHECK).output, plain):
                raise Violation(CHECK, "a request for the weights changes the output")

    def _related(self, relation: Relation, case: Case) -> float:
        """A relation, where it applies to the call."""
        adapted = fit(relation, self.subject, case)
        if isinstance(adapted, str):
            return 0.0
        one_hot = adapted.B * adapted.H * adapted.Q * adapted.K * (adapted.D + adapted.K)
        if adapted.K > MAX_READINGS * adapted.V if adapted.dropout else one_hot > MAX_PRODUCTS:
            return 0.0
        if relation.name == "double_backward" and _products(adapted) > MAX_THREADED:
            return 0.0
        self.last = {}
        try:
            return relation.run(Evaluated(self.subject, adapted)) or 0.0
        except Inconclusive:  # of this relation alone
            return 0.0
        except Violation as violation:
            raise type(violation)(CHECK, f"{relation.name}: {violation.message}", **violation.numbers) from violation

    def _check_around(
        self, tensors: list[Tensor], before: list[Tensor], settings: dict[str, object], state: tuple[Any, ...], when: str
    ) -> None:
        for tensor, kept in zip(tensors, before, strict=True):
            if not torch.equal(tensor, kept):
                raise Violation(CHECK, f"an input {tuple(tensor.shape)} {tensor.dtype} was written to{when}")
        for name, value in process_settings().items():
            if value != settings[name]:
                raise Violation(CHECK, f"changed {name} of the process from {settings[name]} to {value}, and left it so{when}")
        if _random_states() != state:
            raise Violation(CHECK, f"drew random numbers although dropout is 0{when}")


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """So many threads of torch: a kernel that leaves one behind changes nothing where there is one."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def memory_of_nan() -> Iterator[None]:
    """Memory that torch does not initialise holds NaN, as it does under torch's switch for deterministic algorithms."""
    before = torch.get_deterministic_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*determinis")  # of operations that have no deterministic form
        torch.set_deterministic_debug_mode("warn")
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(before)


def _random_states() -> tuple[Any, ...]:
    """Of torch, Python and, where it is imported, NumPy."""
    numpy = sys.modules.get("numpy")
    other = () if numpy is None else (numpy.random.get_state()[1].tobytes(), numpy.random.get_state()[2])
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), other
