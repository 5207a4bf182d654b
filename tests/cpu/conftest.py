"""Every test draws from the same seed."""

from fixtures import seeded  # noqa: F401
