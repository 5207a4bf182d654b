"""The option that asks for the full product of all parts, or for one slice of it; and one thread for these tiny models."""

import pytest


def pytest_addoption(parser):
    parser.addoption("--full-product", nargs="?", const="1/1", default=None, metavar="I/N",
                     help="try every combination of all parts, or the I-th of N slices of them")  # fmt: skip


@pytest.fixture
def full_product(request):
    """(I, N), or a skip."""
    asked = request.config.getoption("--full-product")
    if asked is None:
        pytest.skip("the full product is tried on demand: --full-product [I/N]")
    number, _, slices = asked.partition("/")
    return int(number), int(slices)


@pytest.fixture(autouse=True, scope="session")
def _on_one_thread(one_thread):
    """Requests the shared fixture for every test here."""
