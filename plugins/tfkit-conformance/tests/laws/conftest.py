"""What the tests of the laws share: the catalogue, and catalogues with a third party's entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tfkit import Catalogue, load_catalogue
from tfkit.plugin import hookimpl

HOOKS = {
    "position": "tfkit_position_schemes",
    "norm": "tfkit_norms",
    "placement": "tfkit_placements",
    "activation": "tfkit_activations",
}


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return load_catalogue()


@pytest.fixture(scope="session")
def offering(catalogue: Catalogue) -> Callable[..., Catalogue]:
    """The catalogue with further entries of one slot."""

    def with_entries(slot: str, *entries: Any) -> Catalogue:
        def offered() -> list[Any]:
            return list(entries)

        plugin = type("Acme", (), {HOOKS[slot]: staticmethod(hookimpl(offered, specname=HOOKS[slot]))})
        return catalogue.with_plugin(plugin(), "acme")

    return with_entries
