import pytest

from translation_task import write_task


@pytest.fixture
def task(tmp_path):
    """The path of a recipe, with its spec and its text beside it."""
    return write_task(tmp_path)
