"""Replaces the backends of a model's attention sites for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tfkit import Model
from tfkit.inspection import BackendChoice, BoundBackend


@contextmanager
def replaced_backends(model: Model, replacement: Callable[[str, BoundBackend], BoundBackend]) -> Iterator[None]:
    """Replaces each candidate of each site by `replacement(site, candidate)`. Only this model changes, until the block ends."""
    before = [(attention, index, attention.choices[index]) for attention, index, _ in model.attention_sites()]
    for attention, index, choice in before:
        candidates = tuple(replacement(choice.site, candidate) for candidate in choice.candidates)
        attention.choices[index] = BackendChoice(
            choice.site, choice.requested_backends, candidates, choice.automatic, choice.others
        )
    try:
        yield
    finally:
        for attention, index, choice in before:
            attention.choices[index] = choice


def request_backend(model: Model, requested: Any) -> None:
    """Requests a backend at every site of a model, if it has any."""
    if model.sites:
        model.set_backend(requested)
