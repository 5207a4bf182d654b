"""Which distribution an error report attributes an exception to."""

import importlib.metadata
import sys

import pytest

from tfkit.cli import plugin_attribution as blame

SOURCE = """
def fail():
    raise ValueError("no such\\nkernel")

def call(function):
    return function()
"""


@pytest.fixture
def acme(monkeypatch, tmp_path):
    """A plugin's module."""
    (tmp_path / "acme_attention.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_attention", raising=False)
    points = [*importlib.metadata.entry_points(group="tfkit"), importlib.metadata.EntryPoint("acme", "acme_attention", "tfkit")]
    monkeypatch.setattr(blame, "entry_points", lambda group: points)
    import acme_attention

    return acme_attention


def test_an_exception_of_a_plugin_is_attributed_to_it(tfkit, acme, monkeypatch, small):
    monkeypatch.setattr("tfkit.graph.graph_of", lambda spec: acme.fail())
    done = tfkit("show", small)
    assert done.code == 1
    assert done.err == (
        "TFK056 the plugin acme (acme_attention, line 3) failed: ValueError: no such kernel; --traceback prints where\n"
    )
    assert tfkit("show", small, "--json").json()["diagnostics"][0]["code"] == "TFK056"


def test_a_plugin_is_named_also_where_it_called_something_else(acme):
    with pytest.raises(ZeroDivisionError) as error:
        acme.call(lambda: 1 / 0)
    assert blame.culprit(error.value) == "acme (acme_attention, line 6)"


def test_our_own_bugs_stay_ours(tfkit, acme, monkeypatch, small):
    monkeypatch.setattr("tfkit.graph.graph_of", lambda spec: 1 / 0)
    assert "TFK099 this is a bug in tfkit" in tfkit("show", small).err
