"""Fixtures of every test of the core."""

from fixtures import catalogue, described, drawn, one_thread

__all__ = ["catalogue", "described", "drawn", "one_thread"]
