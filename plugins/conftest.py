"""The tiers of tests, for the tests of plugins."""

from tiers import pytest_configure

__all__ = ["pytest_configure"]
