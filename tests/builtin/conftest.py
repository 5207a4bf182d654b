"""What the tests of the built-in parts share: the variants of an entry, and spans of positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tfkit.inspection import Entry
from tfkit.plugin import OneOf
from tfkit.plugin.model_parts import PositionRange


def _variants(entry: Entry) -> list[Any]:
    """The entry's default options, and for each choice of each option the options with it."""
    options = [entry.options()]
    for name, field in entry.options.model_fields.items():
        for annotation in field.metadata:
            if isinstance(annotation, OneOf):
                options += [entry.options(**{name: choice}) for choice in annotation.names]
        if field.annotation is bool:
            options += [entry.options(**{name: flag}) for flag in (False, True)]
    return [each for number, each in enumerate(options) if each not in options[:number]]  # a choice may be the default


@pytest.fixture
def variants() -> Callable[[Entry], list[Any]]:
    return _variants


@pytest.fixture
def span_of() -> Callable[..., PositionRange]:
    def make(
        queries: int,
        keys: int | None = None,
        offset: int = 0,
        key_start: int | None = None,
        dtype: torch.dtype = torch.float32,
        visible: torch.Tensor | None = None,
    ) -> PositionRange:
        keys = offset + queries if keys is None else keys
        start = offset if key_start is None else key_start
        return PositionRange(queries, keys, offset, start, torch.device("cpu"), dtype, visible)

    return make
