"""Fixtures of every test of the core."""

from fixtures import catalogue, described, drawn, one_thread
from forced import gpu
from tiers import pytest_configure, pytest_xdist_auto_num_workers

__all__ = ["catalogue", "described", "drawn", "gpu", "one_thread", "pytest_configure", "pytest_xdist_auto_num_workers"]
