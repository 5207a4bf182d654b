from __future__ import annotations

import math

import pytest
import torch
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.whisper.modeling_whisper import sinusoids as whisper_sinusoids

from tfkit.builtin.position.embedding_positions import sinusoidal as build, sinusoidal_halves as build_halves, sinusoids
from tfkit.builtin.position.entries import SinusoidalOptions, sinusoidal_unsupported
from tfkit.plugin.model_parts import PositionSite


@pytest.mark.parametrize("width", [8, 7])
@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_interleaved_is_the_papers_formula(width, base):
    positions = [0, 1, 5, 1000, 2**20 - 1]
    ours = sinusoids(torch.tensor(positions), width, base, inclusive=False, interleaved=True)
    for row, position in zip(ours.tolist(), positions, strict=True):
        for feature, value in enumerate(row):
            angle = position / base ** (2 * (feature // 2) / width)
            assert value == pytest.approx(math.cos(angle) if feature % 2 else math.sin(angle), abs=1e-8)


def test_inclusive_ends_at_one_over_base():
    ours = sinusoids(torch.tensor([3]), 8, 100.0, inclusive=True, interleaved=True)[0]
    for pair in range(4):
        assert ours[2 * pair].item() == pytest.approx(math.sin(3 * 100 ** (-pair / 3)), abs=1e-14)
    assert ours[7].item() == pytest.approx(math.cos(3 / 100), abs=1e-14)


@pytest.mark.parametrize(("build", "column"), [(build, lambda i: (2 * i, 2 * i + 1)), (build_halves, lambda i: (i, 4 + i))])
def test_pairs_counted_from_1_end_at_one_over_base(build, column, span_of):
    module = build(SinusoidalOptions(first_pair=1), PositionSite(8))
    ours = module.embed(torch.zeros(1, 5, 8, dtype=torch.float64), span_of(5, dtype=torch.float64))[0]
    for t in range(5):
        for m in range(1, 5):  # the column vector of frequencies f_m, m = 1 .. 4
            sine, cosine = column(m - 1)
            angle = t / 10000 ** (2 * m / 8)
            assert ours[t, sine].item() == pytest.approx(math.sin(angle), abs=1e-14)
            assert ours[t, cosine].item() == pytest.approx(math.cos(angle), abs=1e-14)
    assert sinusoidal_unsupported(SinusoidalOptions(first_pair=1, last_frequency="inclusive"), PositionSite(8))


@pytest.mark.parametrize("width", [16, 15])
def test_halves_are_marians_table(width):
    table = MarianSinusoidalPositionalEmbedding(600, width).create_weight()
    ours = sinusoids(torch.arange(600), width, 10000.0, inclusive=False, interleaved=False)
    assert torch.equal(ours.float(), table)


def test_inclusive_halves_are_whispers_table():
    table = whisper_sinusoids(1500, 64)
    ours = sinusoids(torch.arange(1500), 64, 10000.0, inclusive=True, interleaved=False)
    # Whisper rounds frequency and angle to float32: three roundings of at most 1500 radians.
    assert (ours - table.double()).abs().max() <= 3 * 1500 * 2**-24 + 2**-24


def test_halves_and_interleaved_are_one_another_in_another_order():
    halves = sinusoids(torch.arange(9), 8, 10000.0, inclusive=False, interleaved=False)
    interleaved = sinusoids(torch.arange(9), 8, 10000.0, inclusive=False, interleaved=True)
    assert torch.equal(halves, torch.cat((interleaved[:, 0::2], interleaved[:, 1::2]), 1))


def test_add_keeps_the_embedding_and_concat_projects_both(span_of):
    torch.manual_seed(0)
    x, site = torch.randn(2, 5, 6, dtype=torch.float64), PositionSite(6)
    waves = sinusoids(torch.arange(3, 8), 6, 10000.0, False, True)
    span = span_of(5, offset=3, dtype=torch.float64)
    torch.testing.assert_close(build(SinusoidalOptions(), site).embed(x, span), x + waves, rtol=0, atol=0)
    module = build(SinusoidalOptions(combine="concat"), site).double()
    left, right = module.projection.weight[:, :6], module.projection.weight[:, 6:]
    torch.testing.assert_close(module.embed(x, span), x @ left.T + waves @ right.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("combine", ["add", "concat"])
@pytest.mark.parametrize("make", [build, build_halves])
def test_count_visible_makes_left_padding_invisible(make, combine, span_of):
    torch.manual_seed(0)
    x = torch.randn(2, 6, 4)
    visible = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1]], dtype=torch.bool)
    module = make(SinusoidalOptions(count="visible", combine=combine), PositionSite(4))
    y = module.embed(x, span_of(6, visible=visible))
    for row in range(2):
        tight = x[row, visible[row]].unsqueeze(0)
        torch.testing.assert_close(y[row, visible[row]], module.embed(tight, span_of(tight.shape[1]))[0])


@pytest.mark.parametrize(("width", "broken"), [(2, True), (7, True), (4, False), (6, False)])
def test_inclusive_is_refused_where_it_has_no_meaning(width, broken):
    reasons = sinusoidal_unsupported(SinusoidalOptions(last_frequency="inclusive"), PositionSite(width))
    assert bool(reasons) is broken
    assert all(str(width) in reason for reason in reasons)
    assert not sinusoidal_unsupported(SinusoidalOptions(), PositionSite(width))
