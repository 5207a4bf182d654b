"""The plan: what was asked for at each site, what will be used there, and every reason, for devices that are not there too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import tfkit
from tfkit.graph import SitePlan, plan, refusals
from tfkit.inspection import Target

NODES = """nodes:
  tokens: {kind: tokens}
  body:
    kind: stack
    input: tokens
    causal: true
    layers:
      - {attention: {backend: auto}}
      - {attention: {backend: flex}}
      - {attention: {backend: [flex, sdpa, eager]}}
      - {attention: {backend: sdpa, softcap: 5.0}}
      - {attention: {backend: {kind: sdpa, kernel: cudnn}}}
      - {attention: {backend: [flex, eager], dropout: 0.1}, position: {kind: relative_t5, buckets: 6}}
outputs: [body]
"""


@pytest.fixture
def rows(graph_from: Callable[..., tfkit.Graph], catalogue: tfkit.Catalogue) -> Callable[[Target], dict[int, list[SitePlan]]]:
    def make(target: Target) -> dict[int, list[SitePlan]]:
        found: dict[int, list[SitePlan]] = {}
        for row in plan(graph_from(NODES), catalogue, target):
            found.setdefault(int(row.site.split(".")[1]), []).append(row)
        return found

    return make


def reasons(row: SitePlan, backend: str) -> str:
    return ", ".join(next(candidate.verdict.refused for candidate in row.candidates if candidate.backend == backend))


def test_training_on_a_cpu(rows: Callable[[Target], dict[int, list[SitePlan]]]) -> None:
    found = rows(Target())
    assert {row.requested for row in found[0]} == {"auto"}
    ((flex,), (many,), (capped,), (cudnn,), (biased,)) = (found[index] for index in range(1, 6))
    assert (flex.requested, flex.chosen) == ("flex", None)
    assert "no backward on the CPU" in reasons(flex, "flex")
    assert (many.requested, many.chosen) == ("flex, sdpa, eager", "sdpa")
    assert [candidate.backend for candidate in many.candidates] == ["flex", "sdpa", "eager"]
    assert (capped.chosen, reasons(capped, "sdpa")) == (None, "softcap is not declared")
    assert cudnn.chosen is None
    assert "CUDA only" in reasons(cudnn, "sdpa")
    assert biased.chosen == "eager"
    assert {"no gradient for a distance bias", "dropout is not declared"} <= set(biased.candidates[0].verdict.refused)


def test_inference_on_a_cpu(rows: Callable[[Target], dict[int, list[SitePlan]]]) -> None:
    found = rows(Target(training=False))
    assert found[1][0].chosen == "flex"
    assert found[2][0].chosen == "flex"
    assert found[5][0].chosen == "flex"


def test_auto_gives_a_row_for_each_class_of_lengths_and_they_cover_all(
    rows: Callable[[Target], dict[int, list[SitePlan]]], catalogue: tfkit.Catalogue, graph_from: Callable[..., tfkit.Graph]
) -> None:
    for training in (False, True):
        found = rows(Target(training=training))[0]
        ends = [row.lengths for row in found]
        assert ends[0] is not None
        assert ends[-1] is not None
        assert ends[0][0] == 1
        assert ends[-1][1] is None
        for before, after in pairwise(found):
            assert before.lengths is not None
            assert after.lengths is not None
            assert after.lengths[0] == (before.lengths[1] or 0) + 1
            assert before.chosen != after.chosen
        for row in found:
            assert row.chosen is not None
            assert row.lengths is not None
            for length in (max(row.lengths[0], 2), row.lengths[1] or row.lengths[0] + 1000):  # a single query is decoding
                (at,) = rows(Target(training=training, queries=length, keys=length))[0]
                assert at.chosen == row.chosen
                accepted = [candidate for candidate in at.candidates if candidate.verdict.accepted]
                assert at.chosen == min(accepted, key=lambda candidate: candidate.relative_time or float("inf")).backend


def test_a_gpu_that_is_not_there(rows: Callable[[Target], dict[int, list[SitePlan]]]) -> None:
    found = rows(Target(device="cuda", cuda_capability=(9, 0), dtype="bfloat16"))
    assert all(row.chosen for row in found[0])
    assert "head_dim 4 is below 16" in reasons(found[1][0], "flex")
    assert found[4][0].chosen == "sdpa"  # pinned to flash, which masks by causality alone: no node tells of padding


@pytest.mark.slow
def test_planning_never_imports_torch() -> None:
    code = """
import sys, tfkit
from tfkit.graph import Target, plan, graph_of
catalogue = tfkit.load_catalogue()
spec = tfkit.load_spec(sys.argv[1], catalogue)
rows = plan(graph_of(spec), catalogue, Target(device="cuda", cuda_capability=(8, 0), dtype="float16"))
assert rows and all(row.chosen for row in rows)
assert "torch" not in sys.modules
"""
    spec = Path(__file__).parents[2] / "specs" / "transformer-base.yaml"
    run = subprocess.run([sys.executable, "-c", code, spec], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr


def test_a_refusal_names_each_site_each_reason_and_who_would_work(
    graph_from: Callable[..., tfkit.Graph], catalogue: tfkit.Catalogue
) -> None:
    found = refusals(graph_from(NODES).sites(), catalogue, Target())
    diagnostics = {diagnostic.path: diagnostic for diagnostic in found}
    assert set(diagnostics) == {f"body.{index}.self_attention" for index in (1, 3, 4)}
    assert {diagnostic.code for diagnostic in diagnostics.values()} == {"TFK060"}
    capped = diagnostics["body.3.self_attention"]
    assert "softcap is not declared" in capped.message
    assert capped.fix == "backends that would work here: eager"
    assert "eager, sdpa" in diagnostics["body.1.self_attention"].fix


def test_who_would_work_may_be_nobody(graph_from: Callable[..., tfkit.Graph], catalogue: tfkit.Catalogue) -> None:
    """Where a requested backend works on another device, the message names the device."""
    found = refusals(graph_from(NODES).sites(), catalogue, Target(device="npu"))
    assert found
    fixes = {diagnostic.fix for diagnostic in found}
    assert fixes == {"no installed backend can do this", "move the model to cpu or cuda"}


@pytest.mark.slow
def test_the_plan_agrees_with_the_model(
    graph_from: Callable[..., tfkit.Graph], spec_from: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue
) -> None:
    nodes = (
        NODES.replace("backend: flex}", "backend: eager}")
        .replace(", softcap: 5.0", "")
        .replace("{kind: sdpa, kernel: cudnn}", "sdpa")
    )
    model = tfkit.build(spec_from(nodes), catalogue)
    for training, length in ((True, 5), (True, 200), (False, 5), (False, 200)):
        planned = plan(graph_from(nodes), catalogue, Target(training=training, queries=length, keys=length))
        with torch.set_grad_enabled(training):
            model.train(training)(tokens=torch.ones(2, length).long())
        for attention, index, site in model.attention_sites():
            choice = attention.choices[index]
            last = choice.candidates[list(choice.decided.values())[-1]].kind
            assert last == next(row.chosen for row in planned if row.site == site), (site, training, length)
