"""`tfkit check` refuses the attention backends that building refuses, and no others; it needs no torch for that."""

from __future__ import annotations

import subprocess
import sys
import types
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

import tfkit as package
from tfkit.builder.backends import BackendResolver
from tfkit.cli.backend_args import check_possible
from tfkit.inspection import MASK_TERMS, Target
from tfkit.plugin import Component, hookimpl

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
RECIPE = "specs/recipes/translate-small.yaml"


def without(eager, name, **declared):
    """The eager backend, declaring less."""
    return replace(eager, name=name, capabilities=eager.capabilities.model_copy(update=declared))


@pytest.fixture(scope="module")
def wider(catalogue):
    """The built-in backends, and for every mask term one of the CPU that lacks it; some that lack something else."""
    eager = catalogue.find("backend", "eager")
    cpu, gpu = ([device for device in eager.capabilities.devices if device.kind == kind] for kind in ("cpu", "cuda"))
    lacking = [
        without(eager, f"acme.no_{term}", mask_terms=eager.capabilities.mask_terms - {term}, devices=tuple(cpu))
        for term in MASK_TERMS
    ]
    lacking += [
        without(eager, "acme.gpu", devices=tuple(gpu)),
        without(eager, "acme.half", dtypes=frozenset({"bfloat16"})),
        without(eager, "acme.dot", scores=frozenset({"dot"}), devices=tuple(cpu)),
        without(eager, "acme.wide", head_dim=eager.capabilities.head_dim.model_copy(update={"minimum": 1000})),
        without(eager, "acme.forward", backward=False),
        without(eager, "acme.plain", bias_kinds=frozenset(), bias_gradient=frozenset()),
        without(eager, "acme.fixed", bias_gradient=frozenset()),
    ]
    plugin = types.ModuleType("acme")
    plugin.tfkit_attention_backends = hookimpl(lambda: lacking)
    return catalogue.with_plugin(plugin, "acme")


@pytest.fixture
def wider_installed(installed, wider):
    installed(wider)


def is_possible(spec, graph, catalogue):
    try:
        check_possible(spec, graph, catalogue, Target(device=None, dtype=None, training=False))
    except package.BackendRefused:
        return False
    return True


def is_bound(sites, catalogue, name, dtype):
    """Whether `build` finds a backend for every site of these on the CPU: what it asks before any module is filled."""
    try:
        BackendResolver(sites, catalogue)(dict.fromkeys(sites, name), torch.device("cpu"), dtype)
    except package.BackendRefused:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_check_and_build_agree_for_every_backend_and_every_mask_term(path, wider):
    spec = package.load_spec(path, wider)
    graph = package.graph_of(spec)
    alike = {}
    for site in dict(graph.sites()).values():
        alike.setdefault(site, len(alike))
    for entry, options in wider.ready("backend"):
        requested = (Component(entry, options),)
        sites = {f"site.{number}": replace(site, backend=requested) for site, number in alike.items()}
        wished = types.SimpleNamespace(
            sites=lambda sites=sites: iter(sites.items()), nodes={"site": graph.nodes[graph.outputs[0]]}
        )
        found = is_possible(spec, wished, wider)
        built = [is_bound(sites, wider, entry.name, dtype) for dtype in DTYPES]
        if {device.kind for device in entry.capabilities.devices} == {"cpu"}:
            assert found == any(built), entry.name
        assert found or not any(built), f"{entry.name} is refused, and serves"
        missing = {term for site in alike for term in site.mask_terms - entry.capabilities.mask_terms}
        assert not (missing and found), f"{entry.name} lacks {missing}"


def test_a_backend_that_lacks_a_term_is_refused_where_it_was_written(tfkit, small, wider_installed):
    done = tfkit("check", small, "--set", "defaults.attention.backend=acme.no_key_visible")
    assert (done.code, done.out) == (2, "")
    first = done.err.splitlines()[0]
    assert first.startswith("--set defaults.attention.backend=acme.no_key_visible:1:28: TFK060 encoder.0-1.self_attention: ")
    reason = "acme.no_key_visible: mask term key_visible is not declared"
    padded = small.read_text().splitlines()
    line = next(number for number, text in enumerate(padded, 1) if "pad_id: " in text)
    column = padded[line - 1].index("pad_id: ") + len("pad_id: ") + 1
    origin = f"{reason} (from `defaults.pad_id` at {small}:{line}:{column}); backends that would work here: acme.dot"
    assert origin in first
    built = tfkit("build", small, "--set", "defaults.attention.backend=acme.no_key_visible")
    assert built.code == 2
    assert [line.split(": ")[:2] for line in built.err.splitlines()] == [line.split(": ")[:2] for line in done.err.splitlines()]
    small.write_text(small.read_text().replace("num_layers: 3,", "num_layers: 3, self_attention: {backend: acme.no_causal},"))
    (diagnostic,) = tfkit("check", small, "--json").json()[0]["diagnostics"]
    assert (diagnostic["code"], diagnostic["path"], diagnostic["line"]) == ("TFK060", "decoder.0-2.self_attention", 11)


@pytest.mark.parametrize(
    ("spec", "settings", "reason"),
    [
        ("t5-small", ["defaults.attention.backend=acme.plain"],
         "distance bias is not declared (from `defaults.position` at specs/t5-small.yaml:"),
        ("t5-small", ["defaults.attention.backend=acme.fixed"],
         "no gradient for a distance bias (from `defaults.position` at specs/t5-small.yaml:"),
        ("transformer-tiny", ["defaults.attention.sink=true", "defaults.attention.backend=acme.plain"],
         "dense bias is not declared (from `defaults.attention.sink` at --set defaults.attention.sink=true:"),
        ("transformer-tiny", ["defaults.attention.sink=true", "defaults.attention.backend=acme.no_visible"],
         "mask term visible is not declared (from `defaults.attention.sink` at --set defaults.attention.sink=true:"),
        ("rnnsearch", ["decoder.cross_attention.backend=acme.dot"],
         "score function additive is not declared (from `nodes.decoder.cross_attention.score` at specs/rnnsearch.yaml:"),
        ("luong", ["decoder.cross_attention.local={half_width: 3}", "decoder.cross_attention.backend=acme.plain"],
         "dense bias is not declared (from `nodes.decoder.cross_attention.local` at --set decoder.cross_attention.local="),
    ],
)  # fmt: skip
def test_a_refusal_says_which_value_needs_a_bias_or_a_score(tfkit, wider_installed, spec, settings, reason):
    done = tfkit("plan", f"specs/{spec}.yaml", *(word for each in settings for word in ("--set", each)))
    assert done.code != 0
    assert reason in done.err


def test_a_backend_for_another_device_or_dtype_is_no_error_of_the_spec(tfkit, small, wider_installed):
    for name in ("acme.gpu", "acme.half", "acme.forward", "flex", "auto", "[acme.no_causal, eager]"):
        done = tfkit("check", small, "--set", f"defaults.attention.backend={name}")
        assert (done.code, done.err) == (0, ""), name


def test_sites_that_no_device_serves_together_are_refused(tfkit, small, wider_installed):
    apart = ("--set", "encoder.self_attention.backend=acme.gpu", "--set", "decoder.attention.backend=acme.no_window")
    done = tfkit("check", small, *apart)
    assert done.code == 2
    assert "device cpu is not among cuda" in done.err
    assert tfkit("build", small, *apart).code == 2


def test_a_recipe_is_refused_where_its_backend_cannot_train(tfkit, wider_installed):
    for name, message in {
        "acme.forward": "it has no backward",
        "acme.half": "dtype float32 is not among bfloat16",
        "acme.no_key_visible": "mask term key_visible is not declared",
    }.items():
        done = tfkit("check", RECIPE, "--set", f"model.defaults.attention.backend={name}")
        assert done.code == 2, name
        assert message in done.err
    half = ("--set", "model.defaults.attention.backend=acme.half", "--set", "precision=bfloat16")
    assert tfkit("check", RECIPE, *half).code == 0


@pytest.mark.parametrize(("kind", "metric"), list(product(("parallel", "language", "masked", "classification"), ("bleu",))))
def test_a_metric_that_cannot_be_computed_is_reported_before_training(tfkit, kind, metric):
    done = tfkit("check", RECIPE, "--set", f"data.kind={kind}", "--set", f"validation.metric={metric}")
    assert (done.code, "TFK112 validation.metric" in done.err) == ((0, False) if kind == "parallel" else (2, True))


def test_judging_backends_never_imports_torch():
    code = """
import sys
from tfkit.cli import main
assert main(["check", "specs/transformer-base.yaml", "--set", "defaults.attention.backend=sdpa"]) == 0
assert main(["check", "specs/transformer-base.yaml", "--set", "defaults.attention={backend: sdpa, softcap: 5.0}"]) == 2
assert "torch" not in sys.modules
"""
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=root)
    assert run.returncode == 0, run.stderr
    assert "softcap is not declared" in run.stderr
