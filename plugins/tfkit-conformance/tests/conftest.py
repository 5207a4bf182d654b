"""Fixtures of every test of the conformance kit."""

from fixtures import catalogue, described, drawn, one_thread

__all__ = ["catalogue", "described", "drawn", "one_thread"]
