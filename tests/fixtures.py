"""Fixtures that several test directories share; their `conftest.py` files import them."""

from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from rich.console import Console

from tfkit import graph_of, load_catalogue, load_spec, parse_spec

SPECS = Path(__file__).parents[1] / "specs"

settings.register_profile("tfkit", derandomize=True, deadline=None, database=None)
settings.load_profile("tfkit")


@pytest.fixture(scope="session")
def catalogue():
    """The built-in parts, whatever plugins are installed beside them."""
    return load_catalogue(point for point in entry_points(group="tfkit") if point.name == "builtin")


@pytest.fixture(autouse=True)
def seeded():
    """Random numbers of torch that do not depend on the order of tests; in the directories that import it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        yield


@pytest.fixture
def drawn():
    """The text of renderables on a terminal of some columns, without colours."""

    def draw(*renderables, width=80):
        console = Console(width=width, highlight=False, markup=False, color_system=None)
        with console.capture() as capture:
            for renderable in renderables:
                console.print(renderable)
        return capture.get()

    return draw


@pytest.fixture
def described(catalogue):
    """The spec and the graph of a shipped spec, or of a text."""

    def describe(source):
        spec = parse_spec(source, catalogue) if "\n" in source else load_spec(SPECS / source, catalogue)
        return spec, graph_of(spec)

    return describe


@pytest.fixture(scope="session")
def one_thread():
    """Small models run faster on one thread: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def rounding():
    """How far two correct evaluations of a model may be apart, absolutely.

    Each inner product of n terms of unit roundoff u is off by at most n u times its terms' sizes (Higham 2002, section 3.1);
    a token meets every weight's columns once per application, and each softmax adds K terms. With sizes about those of the
    output, both evaluations together: 2 * 2 * u * (sum of inner lengths) * the largest output. A wrong position, mask or cache
    moves these models' outputs by more than a hundredth.
    """

    def make(model, output, keys):
        unit = torch.finfo(output.dtype).eps / 2
        inner = sum(p.shape[-1] for p in model.parameters() if p.dim() > 1) + keys * len(model.sites)
        return 4 * unit * inner * float(output.abs().max())

    return make
