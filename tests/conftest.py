"""Fixtures of every test of the core."""

from fixtures import catalogue, described, drawn, one_thread
from tiers import pytest_configure

__all__ = ["catalogue", "described", "drawn", "one_thread", "pytest_configure"]
