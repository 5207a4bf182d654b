"""Mutants of score functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tfkit_conformance.laws.law import PartUnderTest

from .mutant import Built, Change, declares, law_mutants, overriding


def _score(rule: Callable[[Built, Tensor, Tensor], Tensor]) -> Change:
    """The score is `rule(built, query, mapped)`."""
    return overriding("forward", rule)


def _keys(rule: Callable[[Built, Tensor], Tensor]) -> Change:
    """The mapped key is `rule(built, key)`."""
    return overriding("map_keys", rule)


def _first_group(built: Built, query: Tensor, mapped: Tensor) -> Tensor:
    return built.own(query, mapped[:, torch.arange(query.shape[1]) % mapped.shape[1]])


def _memory(built: Built, query: Tensor, mapped: Tensor) -> Tensor:
    held = built.module.__dict__.setdefault("held", [])
    held.append(0.0)
    return built.own(query, mapped) + 2.0**-6 * (len(held) > 2)


def _in_place(built: Built, query: Tensor, mapped: Tensor) -> Tensor:
    found = built.own(query, mapped)
    query.detach().mul_(2)
    return found


def _by_layout(built: Built, query: Tensor, mapped: Tensor) -> Tensor:
    return built.own(query.as_strided(query.shape, torch.empty(query.shape).stride()), mapped)


def _bfloat16(built: Built, query: Tensor, mapped: Tensor) -> Tensor:
    found: Tensor = built.own(query, mapped)
    return found.bfloat16().float() if found.dtype == torch.float32 else found


def _half_slope(built: Built, query: Tensor, mapped: Tensor) -> Tensor:
    return built.own(0.5 * query + 0.5 * query.detach(), mapped)


def _wider_weight(subject: PartUnderTest) -> PartUnderTest:
    own = subject.entry.parameters

    def parameters(options: Any, site: Any) -> tuple[Any, ...]:
        first, *rest = own(options, site)
        return (replace(first, shape=(first.shape[0] + 1, *first.shape[1:])), *rest)

    return replace(subject, entry=replace(subject.entry, parameters=parameters))


MUTANTS = law_mutants(
    "score",
    additive=(
        ("additive_first_query", "every query is scored as the first one",
         _score(lambda built, q, k: built.own(q[:, :, :1].expand_as(q), k))),
        ("additive_mean_key", "a key is centred by the mean of all keys",
         _score(lambda built, q, k: built.own(q, k - k.mean(2, keepdim=True)))),
        ("additive_normalised", "scores are normalised over the keys",
         _score(lambda built, q, k: built.own(q, k).log_softmax(-1))),
        ("additive_first_row", "keys of the first batch row are read for all", _score(lambda built, q, k: built.own(q, k[:1]))),
        ("additive_detached_key", "no gradient reaches the key", _keys(lambda built, k: built.own(k.detach()))),
        ("additive_half_slope", "half of the gradient of the query is lost", _score(_half_slope)),
        ("additive_bfloat16", "scores in float32 are rounded to bfloat16", _score(_bfloat16)),
        ("additive_memory", "the third call differs from the first", _score(_memory)),
        ("additive_weight", "the entry declares a larger weight", _wider_weight),
        ("additive_costs", "the cost is a number",
         declares(costs=lambda options, site, groups, sizes: 12)),
    ),
    general=(
        ("general_groups", "query head h reads key head h % G", _score(_first_group)),
        ("general_scaled", "the score is divided by sqrt(D) though it says that it is the dot product",
         _score(lambda built, q, k: built.own(q, k) / q.shape[-1] ** 0.5 * 1.5)),
        ("general_position", "a key is scaled by its position", _keys(
            lambda built, k: built.own(k) * torch.linspace(1, 2, k.shape[2], dtype=k.dtype)[:, None] if k.shape[2] > 1
            else built.own(k))),
        ("general_writes", "the query is doubled in place", _score(_in_place)),
        ("general_strides", "the query is read as if it lay densely in memory", _score(_by_layout)),
        ("general_float32", "scores of half dtypes are float32", _score(lambda built, q, k: built.own(q, k).float())),
        ("general_training", "scores are larger in training", _score(
            lambda built, q, k: built.own(q, k) * (1.25 if built.module.training else 1.0))),
        ("general_key_order", "the keys of the output are reversed", _score(lambda built, q, k: built.own(q, k).flip(-1))),
    ),
    concat=(
        ("concat_shape", "scores are transposed", _score(lambda built, q, k: built.own(q, k).mT)),
        ("concat_infinite", "a large hidden sum is infinite", _score(lambda built, q, k: built.own(q, k) / 0.0)),
        ("concat_wide_weights", "weights must have the dtype of the key", _keys(
            lambda built, k: torch.nn.functional.linear(k, built.module.weight[:, built.module.head_dim :]))),
        ("concat_heads", "the heads are averaged", _score(
            lambda built, q, k: built.own(q, k).mean(1, keepdim=True).expand(*q.shape[:3], k.shape[2]))),
    ),
)  # fmt: skip
