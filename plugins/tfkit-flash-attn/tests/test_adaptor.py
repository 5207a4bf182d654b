"""The adaptor's logic, tested by the conformance suite with stand-ins on a CPU in float32, by a declaration that is this test's
own; the real packages on CUDA."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tfkit_flash_attn as plugin
import torch
from tfkit_flash_attn.attend import prepare, run

from suite_reports import share_relations
from tfkit import load_catalogue
from tfkit.inspection import check_request
from tfkit.plugin import (
    AttentionInputs,
    AttentionRequest,
    BackendRefused,
    Device,
    LinearBias,
    Mask,
    NoOptions,
    Range,
    Shapes,
    require_capabilities,
)
from tfkit.plugin.flash_calls import flash_calls
from tfkit_conformance import backend_under_test, check_backend

over_versions = pytest.mark.parametrize("entry", plugin.ENTRIES, ids=lambda entry: entry.name)


def together(entry):
    """The entry's joint limits but for what is not installed."""

    def unsupported(request: AttentionRequest, options: NoOptions) -> tuple[str, ...]:
        return tuple(reason for reason in entry.unsupported(request, options) if "not installed" not in reason)

    return unsupported


def on_cpu(entry):
    """The entry as this test declares it: a CPU, float32, any head dim."""
    here = {"devices": (Device(kind="cpu"),), "dtypes": frozenset({"float32"}), "head_dim": Range(multiple=8)}
    return replace(entry, capabilities=entry.capabilities.model_copy(update=here), unsupported=together(entry))


def judged_on_cpu(entry):
    """Its function behind a guard of this test's declaration."""
    here = on_cpu(entry)
    check = require_capabilities(here.name, here.capabilities)

    def attend(inputs, options):
        check(inputs)
        return run(here.name, inputs)

    return replace(backend_under_test(here, attend=attend), prepare=prepare)


@pytest.mark.exhaustive
@over_versions
@pytest.mark.usefixtures("stand_ins")
def test_the_logic_is_conformant(entry, monkeypatch):
    if entry is not plugin.V2:  # which declares the most
        share_relations(monkeypatch, plugin.ENTRIES.index(entry), 2)
    report = check_backend(judged_on_cpu(entry), profile="quick", dtypes=["float32"])
    report.raise_for_failures()
    assert report.verdict == "CONFORMANT", [check for check in report.checks if check.status == "inconclusive"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: there is no CUDA device here")
@over_versions
def test_it_is_conformant_on_cuda(entry):
    if reasons := entry.unsupported(AttentionRequest(), NoOptions()):
        pytest.skip(f"not run: {reasons[0]}")
    report = check_backend(entry, profile="quick", device="cuda")
    report.raise_for_failures()
    assert report.verdict == "CONFORMANT"


def calls(mask, B=3, Q=8, K=8):
    """Of every call of a mask its causality, whether it is packed, and its sequences (row, start, queries, keys)."""
    found = flash_calls(mask, Shapes(B, 2, Q, K, torch.float32, torch.device("cpu")))
    return [
        (call.causal, call.query_index is not None, [(one.row, one.start, one.queries, one.keys) for one in call.sequences])
        for call in found.calls
    ]


def test_a_batch_without_lengths_is_one_dense_call():
    assert calls(Mask()) == [(False, False, [(0, 0, 8, 8)])]
    assert calls(Mask(causal=True, offset=0)) == [(True, False, [(0, 0, 8, 8)])]
    assert calls(Mask(causal=True, offset=7), Q=1) == [(True, False, [(0, 0, 1, 8)])]


def test_a_padded_batch_is_one_packed_call_of_its_tokens():
    lengths = torch.tensor([8, 3, 0])
    packed = calls(Mask(causal=True, offset=0, key_lengths=lengths, query_lengths=lengths))
    assert packed == [(True, True, [(0, 0, 8, 8), (1, 0, 3, 3)])]
    assert calls(Mask(key_lengths=torch.tensor([5, 2, 0])), B=3) == [(False, True, [(0, 0, 8, 5), (1, 0, 8, 2)])]


def test_hidden_keys_are_packed_away_and_causal_rows_are_cut_into_runs():
    visible = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0]]).bool()
    assert calls(Mask(key_visible=visible), B=4, Q=5, K=5) == [(False, True, [(0, 0, 5, 3), (1, 0, 5, 3), (2, 0, 5, 3)])]
    assert calls(Mask(causal=True, offset=0, key_visible=visible), B=4, Q=5, K=5) == [
        (True, True, [(0, 0, 3, 3), (1, 2, 3, 3), (2, 2, 2, 3)]), (False, True, [(0, 3, 2, 3), (2, 0, 2, 1), (2, 4, 1, 3)]),
    ]  # fmt: skip


def test_what_aligns_otherwise_is_cut():
    assert calls(Mask(causal=True, offset=-3)) == [(True, False, [(0, 3, 5, 5)])]
    assert calls(Mask(causal=True, offset=5)) == [(True, False, [(0, 0, 3, 8)]), (False, False, [(0, 3, 5, 8)])]
    assert calls(Mask(causal=True, offset=0, key_lengths=torch.tensor([8, 4])), B=2) == [
        (True, True, [(0, 0, 8, 8), (1, 0, 4, 4)]), (False, True, [(1, 4, 4, 4)]),
    ]  # fmt: skip
    assert calls(Mask(window=(1, 0), offset=20)) == []


@pytest.mark.usefixtures("stand_ins")
def test_what_exists_only_apart_is_refused_together():
    query = torch.randn(1, 2, 4, 8)
    slopes = LinearBias(torch.ones(2))
    plain = AttentionInputs(query, query, query, Mask(causal=True, offset=0), 1.0, bias=slopes)
    run("flash_attn.v2", plain)
    for wrong in (
        replace(plain, mask=Mask(offset=0)), replace(plain, mask=Mask(causal=True, window=(1, 0), offset=0)),
        replace(plain, return_lse=True),
        replace(plain, mask=Mask(causal=True, offset=0, key_visible=torch.ones(1, 4).bool())),
        replace(plain, bias=None, softcap=1.0, dropout=0.5),
    ):  # fmt: skip
        with pytest.raises(BackendRefused, match="TFK060"):
            run("flash_attn.v2", wrong)


@pytest.fixture
def missing(monkeypatch):
    """`missing("why")`: no version can be used here, for that reason; every one where it is empty."""
    return lambda reason: monkeypatch.setattr(plugin, "missing", lambda package: reason)


@over_versions
def test_what_is_not_installed_says_how_to_get_it(entry, missing):
    missing("the package is not installed (how)")
    asked = AttentionRequest(
        device="cuda", cuda_capability=(9, 0), dtype="bfloat16", head_dim=64, value_dim=64, queries=8, keys=8, gradients=True
    )
    [reason] = check_request(entry, asked, NoOptions()).refused
    assert "is not installed" in reason
    missing("")
    assert check_request(entry, asked, NoOptions()).accepted


def test_a_package_that_is_there_is_found_without_importing_it(monkeypatch, missing):
    plugin.missing.cache_clear()
    assert "pip install --pre flash-attn-4" in plugin.missing("flash-attn-4")
    assert "hopper" in plugin.missing("flash_attn_interface")
    plugin.missing.cache_clear()
    monkeypatch.setattr(plugin, "version", lambda package: "2.8.3")
    assert plugin.missing("flash-attn") == ""
    plugin.missing.cache_clear()


@pytest.mark.parametrize(
    ("entry", "requested", "said"),
    [
        (plugin.V2, {"cuda_capability": (8, 9), "head_dim": 256, "value_dim": 256}, "above head_dim 192"),
        (plugin.V3, {"cuda_capability": (10, 0)}, "sm_90 alone"),
        (plugin.V3, {"dropout": True}, "dropout is not declared"),
        (plugin.V3, {"bias": "linear"}, "linear bias is not declared"),
        (plugin.V4, {"head_dim": 72, "value_dim": 72}, "pull/2896"),
        (plugin.V4, {"softcap": True}, "pull/2544"),
        (plugin.V2, {"bias": "linear"}, "without causality"),
        (plugin.V2, {"softcap": True, "dropout": True}, "exclude each other"),
        (plugin.V2, {"mask_terms": frozenset({"segments"})}, "segments"),
        (plugin.V2, {"mask_terms": frozenset({"key_visible", "window"})}, "a window over keys"),
        (plugin.V2, {"mask_terms": frozenset({"key_visible", "causal"}), "bias": "linear"}, "ALiBi over keys"),
        (plugin.V4, {"deterministic": True}, "not deterministic"),
    ],
)
def test_refusals(entry, requested, said, missing):
    missing("")
    asked = AttentionRequest(
        device="cuda", cuda_capability=(9, 0), dtype="bfloat16", head_dim=64, value_dim=64, queries=8, keys=8, gradients=True
    )
    assert any(said in reason for reason in check_request(entry, replace(asked, **requested), NoOptions()).refused)


def test_the_hook_offers_the_entries_without_importing_torch():
    catalogue = load_catalogue(()).with_plugin(plugin, "flash_attn")
    assert catalogue.names("backend") == ["flash_attn.v2", "flash_attn.v3", "flash_attn.v4"]
    code = "import sys, tfkit_flash_attn; print('torch' in sys.modules)"
    path = str(Path(plugin.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r}); {code}"], capture_output=True,
                          text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == "False"
