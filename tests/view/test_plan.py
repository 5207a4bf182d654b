"""The words of a plan."""

from importlib.metadata import entry_points

import pytest

import tfkit
from tfkit import graph_of
from tfkit.graph import SitePlan
from tfkit.inspection import Target
from tfkit.view.plan_data import in_short, lengths_in_words, plan_data, planned
from tfkit.view.plan_text import plan_text
from tfkit.view.sites import all_sites, fold
from tfkit.view.training import gains_elsewhere


@pytest.mark.parametrize(
    ("lengths", "words"),
    [(None, "any length"), ((1, None), "any length"), ((1, 64), "to 64"), ((65, 256), "65 to 256"), ([257, None], "from 257")],
)
def test_lengths_in_words(lengths, words):
    assert lengths_in_words(lengths) == words


def test_in_short():
    def plan(chosen, lengths):
        return SitePlan("s", "auto", chosen, (), lengths)

    assert in_short([plan("eager", None)]) == "eager"
    assert in_short([plan(None, None)]) == "none"
    assert in_short([plan("eager", (1, 64)), plan("sdpa", (65, None))]) == "eager to 64, sdpa from 65"


def candidate(backend, *reasons, depends=(), time=None):
    return {
        "backend": backend,
        "accepted": not reasons,
        "reasons": list(reasons),
        "depends": list(depends),
        "relative_time": time,
        "published": None,
        "rows": [] if time is None else [{"relative_time": time, "measured": None, "published": None, "estimated": None}],
    }


def row(name, chosen, *candidates, requested="auto", lengths=None):
    return {
        "name": name,
        "sites": [name],
        "requested": requested,
        "lengths": lengths,
        "chosen": chosen,
        "candidates": list(candidates),
    }


TARGET = {
    "device": "cuda",
    "cuda_capability": [9, 0],
    "dtype": "bfloat16",
    "training": False,
    "compiled": True,
    "queries": 1,
    "keys": 9,
}


def test_every_reason_is_drawn_in_full(drawn):
    long = "a reason that is much longer than what is left of the line of its cell, and continues"
    sites = [
        row("e.0.x", "b", candidate("a", long, "another"), candidate("b", depends=("the dtype",), time=0.125), lengths=[1, 64]),
        row("e.0.x", None, candidate("a", "no"), lengths=[65, None]),
        row("d.0.x", "b", candidate("b"), requested="b"),
    ]
    text = drawn(*plan_text({"name": "m", "target": TARGET, "sites": sites, "unmeasured": ["z"]}), width=72)
    flat = " ".join(text.split())
    assert flat.startswith("m on cuda sm_90, bfloat16, inference, compiled, 1 queries x 9 keys")
    for part in (f"refused: {long}; another", "0.12 x eager", "accepted; depends on the dtype", "chosen, lengths to 64: b"):
        assert part in flat, part
    assert "chosen, lengths from 65: nothing can serve this" in flat
    assert "auto does not consider backends without measured times: z" in flat
    assert all(len(line) <= 72 for line in text.splitlines())


def test_without_auto_measurements_are_not_mentioned(drawn):
    data = {"name": "m", "target": TARGET, "sites": [row("d.0.x", "b", candidate("b"), requested="b")], "unmeasured": ["z"]}
    assert "measurements" not in drawn(*plan_text(data))


def test_a_plan_and_a_run_say_what_a_distribution_that_is_not_installed_would_gain():
    catalogue = tfkit.load_catalogue(entry_points(group="tfkit", name="builtin"))
    model = tfkit.build("t5-small", catalogue, device="meta")
    target = Target("cuda", (9, 0), "bfloat16")
    plans = planned(fold(all_sites(graph_of(model.spec)).items()), catalogue, target)
    data = plan_data("t5-small", target, plans, catalogue)
    gains = {row["name"]: row["not_installed"] for row in data["sites"]}
    assert gains["encoder.0-5.self_attention"]["tfkit-fused"] > 4
    [line] = [str(part) for part in plan_text(data) if "which is not installed" in str(part)]
    assert line.startswith("tfkit-fused, which is not installed, was measured to be faster: encoder.0-5.self_attention ")
    assert gains_elsewhere(model, target, catalogue) == [line]
    model.set_backend("sdpa")
    assert gains_elsewhere(model, target, catalogue) == []
