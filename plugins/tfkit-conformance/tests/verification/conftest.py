"""Small models to verify, on one thread."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _on_one_thread(one_thread):
    """Requests the shared fixture for every test here."""
