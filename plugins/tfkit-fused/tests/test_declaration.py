"""What the plugin says of itself without running anything, and what it refuses before a launch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest
import tfkit_fused
import torch

from tfkit import BackendRefused, InputError, load_catalogue
from tfkit.inspection import check_request
from tfkit.plugin import AttentionInputs, AttentionRequest, DenseBias, DistanceBias, LinearBias, Mask

ASKED = AttentionRequest(device="cuda", cuda_capability=(9, 0), dtype="bfloat16", head_dim=64, value_dim=64, gradients=True)
OPTIONS = tfkit_fused.FusedOptions()


def test_the_hook_offers_the_entry_and_imports_neither_torch_nor_triton():
    catalogue = load_catalogue(()).with_plugin(tfkit_fused, "tfkit-fused")
    assert catalogue.find("backend", "fused") is tfkit_fused.FUSED
    words = "import sys, tfkit_fused; print({'torch', 'triton'} & set(sys.modules))"
    place = str(tfkit_fused.__path__[0]).rpartition("/")[0]
    code = f"import sys; sys.path.insert(0, {place!r}); {words}"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_what_encoder_decoders_need_is_accepted():
    terms = frozenset({"causal", "key_lengths", "query_lengths"})
    for bias in (None, "linear", "distance", "dense"):
        requested = replace(
            ASKED, mask_terms=terms, bias=bias, bias_gradient=bias is not None, dropout=True, deterministic=True
        )
        assert check_request(tfkit_fused.FUSED, requested, OPTIONS).refused == ()


@pytest.mark.parametrize(
    ("requested", "options", "reason"),
    [
        ({"cuda_capability": (7, 5)}, OPTIONS, "sm_75 is older than sm_80"),
        ({"dtype": "float64"}, OPTIONS, "dtype float64"),
        ({"head_dim": 300}, OPTIONS, "head_dim 300 is outside 1 to 256"),
        ({"value_dim": 300}, OPTIONS, "value dim 300 is above 256"),
        ({"value_dim": 32}, OPTIONS, "makes wrong code for value dims to 32 with wider queries"),
        ({"value_dim": 16, "head_dim": 32}, OPTIONS, "makes wrong code for value dims to 32 with wider queries"),
        ({"weights": True}, OPTIONS, "no attention weights"),
        ({"score": "additive"}, OPTIONS, "score function additive"),
        ({}, tfkit_fused.FusedOptions(tile_queries=24), "tile_queries 24 is no power of two"),
        ({"device": "cpu", "cuda_capability": None, "dtype": "bfloat16"}, OPTIONS, "wrongly in bfloat16"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(requested, options, reason):
    refused = check_request(tfkit_fused.FUSED, replace(ASKED, **requested), options).refused
    assert any(reason in each for each in refused), refused


@pytest.mark.parametrize("requested", [{"value_dim": 32, "cuda_capability": (8, 0)}, {"value_dim": 32, "dtype": "float32"},
    {"value_dim": 32, "head_dim": 32}, {"value_dim": 48}])  # fmt: skip
def test_narrow_values_are_accepted_where_their_code_is_right(requested):
    assert check_request(tfkit_fused.FUSED, replace(ASKED, **requested), OPTIONS).refused == ()


def test_without_triton_it_is_listed_and_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)  # Python takes it for not installed
    assert "triton is not installed" in " ".join(check_request(tfkit_fused.FUSED, ASKED, OPTIONS).refused)


@pytest.mark.skipif(tfkit_fused.INTERPRETED, reason="the interpreter makes the CPU a device")
def test_on_a_cpu_it_says_what_would_do():
    refused = " ".join(check_request(tfkit_fused.FUSED, replace(ASKED, device="cpu", cuda_capability=None), OPTIONS).refused)
    assert "device cpu is not among cuda" in refused
    assert "TRITON_INTERPRET=1" in refused


def call(**changes):
    made = {
        "query": torch.zeros(2, 4, 3, 8), "key": torch.zeros(2, 2, 5, 8), "value": torch.zeros(2, 2, 5, 6), "mask": Mask(),
        "scale": 1.0,
    }  # fmt: skip
    return AttentionInputs(**{**made, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"query": torch.zeros(4, 3, 8)}, ["query has shape (4, 3, 8) where four axes"]),
        ({"query": torch.zeros(0, 4, 3, 8)}, ["query has shape (0, 4, 3, 8): no axis may be empty"]),
        ({"key": torch.zeros(3, 2, 5, 8)}, ["key has shape (3, 2, 5, 8) where (2, 2, 5, 8)", "query of shape (2, 4, 3, 8)"]),
        ({"value": torch.zeros(2, 2, 7, 6)}, ["value has shape (2, 2, 7, 6) where (2, 2, 5, 6)"]),
        ({"key": torch.zeros(2, 3, 5, 8), "value": torch.zeros(2, 3, 5, 6)}, ["4 heads, no multiple of the 3"]),
        ({"key": torch.zeros(2, 2, 5, 8, dtype=torch.float16)}, ["key is torch.float16 where the query is torch.float32"]),
        ({"value": torch.zeros(2, 2, 5, 300)}, ["value dim 300"]),
        ({"dropout": 1.0}, ["dropout is 1.0 where a probability below 1"]),
        ({"mask": Mask(causal=True)}, ["mask.offset is None"]),
        ({"mask": Mask(key_lengths=torch.ones(3, dtype=torch.int64))}, ["mask.key_lengths has shape (3,) where (2,)"]),
        ({"mask": Mask(key_lengths=torch.ones(2))}, ["mask.key_lengths is torch.float32 where integers"]),
        ({"mask": Mask(key_visible=torch.ones(2, 4, dtype=torch.bool))}, ["mask.key_visible has shape (2, 4) where (2, 5)"]),
        ({"mask": Mask(visible=torch.ones(3, 1, 3, 5, dtype=torch.bool))}, ["mask.visible has shape (3, 1, 3, 5)"]),
        ({"mask": Mask(visible=torch.ones(3, 5))}, ["mask.visible is torch.float32 where bool"]),
        ({"mask": Mask(query_segments=torch.ones(2, 3, dtype=torch.int64))}, ["come together"]),
        ({"bias": DenseBias(torch.zeros(4, 3, 4))}, ["bias.values has shape (4, 3, 4)", "(2, 4, 3, 5)"]),
        ({"bias": LinearBias(torch.zeros(3)), "mask": Mask(offset=0)}, ["bias.slopes has shape (3,) where (4,)"]),
        ({"bias": DistanceBias(torch.zeros(3, 9), -4), "mask": Mask(offset=0)}, ["bias.values has shape (3, 9) where (4, R)"]),
        ({"key": torch.zeros(2, 2, 5, 8, device="meta")}, ["key is on meta where the query is on cpu"]),
    ],
)
def test_tensors_that_do_not_fit_are_named_with_their_shapes(changes, words):
    from tfkit_fused.checks import check_call

    with pytest.raises(InputError) as caught:
        check_call(call(**changes))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_direct_call_with_what_is_not_declared_is_refused():
    pytest.importorskip("triton", reason="not run: Triton is not installed")
    from tfkit_fused.attend import attend

    with pytest.raises(BackendRefused, match="attention weights"):
        attend(call(return_weights=True), OPTIONS)
    with pytest.raises(BackendRefused, match="dtypes other than"):
        attend(call(query=torch.zeros(2, 4, 3, 8, dtype=torch.float64)), OPTIONS)


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_the_short_way_of_the_checks_lets_nothing_pass_that_the_long_one_finds(name):
    """Whatever a tensor's shape and dtype, with and without what needs an offset."""
    from tfkit_fused.checks import _axes, _misfits, _three_tensors_fit

    passed = 0
    shapes = [
        (2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 3, 8), (1, 4, 3, 8), (2, 3, 3, 8), (2, 4, 3, 7), (2, 4, 0, 8), (2, 2, 5, 300), (4,)
    ]  # fmt: skip
    for shape, dtype in product(shapes, (torch.float32, torch.float16)):
        for changes in ({}, {"mask": Mask()}, {"mask": Mask(causal=True)}, {"mask": Mask(window=(1, 0))}, {"dropout": 1.0}):
            made = call(**{name: torch.zeros(shape, dtype=dtype), "mask": Mask(causal=True, offset=1), **changes})
            wrong = list(_axes(made)) or list(_misfits(made))
            assert _three_tensors_fit(made) == (not wrong), (shape, dtype, changes, wrong)
            passed += not wrong
    assert passed
