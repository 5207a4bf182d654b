"""Numbers and options in words."""

import pytest

from fixtures import SPECS
from tfkit import load_spec
from tfkit.commands import ranges, scaled
from tfkit.view.formatting import changed_options, percent


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([0], "0"),
        ([0, 1], "0-1"),
        ([0, 1, 2, 3], "0-3"),
        ([2, 5], "2,5"),
        ([0, 2, 4], "0,2,4"),
        ([0, 2, 4, 6], "0,2,..,6"),
        ([1, 4, 7, 10, 13], "1,4,..,13"),
        ([0, 1, 2, 5, 6, 9], "0-2,5-6,9"),
        ([0, 2, 4, 6, 7], "0,2,4,6-7"),
    ],
)
def test_ranges(numbers, words):
    assert ranges(numbers) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0 F"),
        (7, "7 F"),
        (999, "999 F"),
        (1000, "1 kF"),
        (4_074_766_336, "4.07 GF"),
        (999_999, "1 MF"),
        (10**18, "1 EF"),
        (10**22, "10,000 EF"),
    ],
)
def test_scaled(number, words):
    assert scaled(number, "F") == words


def test_percent():
    assert percent(1, 3) == "33.3%"
    assert percent(0, 0) == ""


def test_options_show_only_changed_values(catalogue):
    spec = load_spec(SPECS / "gemma2-9b.yaml", catalogue)
    assert changed_options(spec.nodes["body"].options) == "causal true, final_norm rms_norm (unit_offset true)"
    [group] = spec.nodes["body"].options.layers
    attention = group.layers[0].sublayers[0].options
    assert changed_options(attention, frozenset({"name"})) == (
        "num_heads 16, head_dim 256, num_kv_heads 8, bias false, scale 0.0625, softcap 50, window 4096"
    )
    assert "num_heads" not in changed_options(attention, frozenset({"num_heads"}))


def test_lists_of_parts_and_partial_biases(catalogue):
    overrides = ["defaults.attention.backend=[flex, {kind: sdpa, kernel: math}]", "defaults.attention.bias={key: false}"]
    spec = load_spec(SPECS / "transformer-base.yaml", catalogue, [*overrides, "expect.parameters=null"])
    attention = spec.nodes["encoder"].options.layers[0].sublayers[0].options
    assert "backend flex or sdpa (kernel math)" in changed_options(attention)
    assert "bias key: false" in changed_options(attention)
    frames = load_spec(SPECS / "whisper-small.yaml", catalogue).nodes["frames"].options
    listed = "convolutions (d_model 768, activation gelu), (d_model 768, stride 2, activation gelu), position "
    assert changed_options(frames).startswith(listed)
    decoder = load_spec(SPECS / "luong.yaml", catalogue).nodes["decoder"].options
    assert "reads (state, context)" in changed_options(decoder)
