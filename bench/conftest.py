"""The tiers of tests, for the tests of benchmarks."""

from tiers import pytest_configure, pytest_xdist_auto_num_workers

__all__ = ["pytest_configure", "pytest_xdist_auto_num_workers"]
