"""The same promises on a CUDA device: what it gives is held against the float64 reference on the CPU, never against the CPU's
own float32. Counted as not run where there is no device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import tfkit
import tfkit.generate
from product.drawn import trials
from product.evaluated import Trial, causal, same_under_every_backend, sites_within_bounds, stepwise
from tfkit import load_catalogue
from whole_models.covering import Row, covering
from whole_models.part_rows import PLAIN, factors_of, refusal, spec_of

CATALOGUE = load_catalogue()
ABSENT = pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: there is no CUDA device here")
SOME = settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])


def on(device: str, trial: Trial) -> Trial:
    return Trial(trial.spec, trial.catalogue, trial.lengths, trial.seed, device)


def both_devices_against_the_reference(trial: Trial) -> None:
    """float32 on the CPU, then on the device: outputs and gradients of each against one and the same float64 run."""
    for device in ("cpu", "cuda"):
        same_under_every_backend(on(device, trial), torch.float32)


@pytest.mark.gpu
@ABSENT
@SOME
@given(trials(CATALOGUE))
def test_drawn_models_on_both_devices(trial):
    both_devices_against_the_reference(trial)


@pytest.mark.gpu
@ABSENT
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_sites_of_drawn_models_on_the_device(dtype):
    @SOME
    @given(trials(CATALOGUE))
    def sites(trial):
        for device in ("cpu", "cuda"):
            sites_within_bounds(on(device, trial), dtype)

    sites()


@pytest.mark.gpu
@ABSENT
@SOME
@given(trials(CATALOGUE, ("decoder", "encoder-decoder")))
def test_drawn_decoders_on_the_device(trial):
    causal(on("cuda", trial), "eager")
    stepwise(on("cuda", trial), (1, 2, 3), "eager")


def every_pair() -> tuple[Row, ...]:
    factors = factors_of(CATALOGUE)
    return covering(factors, {name: PLAIN[name] for name in factors}, lambda row: refusal(row, CATALOGUE, "cuda")).rows


def one_of_the_pairs(number: int, row: Row) -> None:
    trial = on("cuda", Trial(spec_of(row, CATALOGUE), CATALOGUE, seed=number))
    sites_within_bounds(trial, torch.float32, (row["backend"],))
    same_under_every_backend(trial, torch.float32, (row["backend"],))


@pytest.mark.gpu
@ABSENT
def test_every_pair_of_parts_on_the_device():
    for number, row in enumerate(every_pair()):
        one_of_the_pairs(number, row)


def test_device_scripts_run_on_a_cpu():
    """The way of the tests above, on the device that is always there."""
    found = same_under_every_backend(Trial(spec_of(PLAIN, CATALOGUE), CATALOGUE), torch.float32)
    assert {"eager", "sdpa"} <= set(found)
    assert 0 < max(found.values()) < 1


@pytest.mark.gpu
@ABSENT
@pytest.mark.parametrize("beams", [0, 1, 4])
def test_recorded_steps_decode_as_ordinary_ones(beams):
    """In float64, where rounding decides nothing. Sources of several lengths, sentences that end at other steps."""
    model = tfkit.build("transformer-tiny", seed=3).to("cuda", torch.float64).eval()
    model.set_backend("sdpa")
    graphs = tfkit.generate.StepGraphs(model)
    for rows, length in ((6, 9), (5, 7), (8, 64)):
        source = torch.randint(4, 900, (rows, length), generator=torch.Generator().manual_seed(rows))
        source[0, length // 2 :] = 0
        limits = torch.tensor([30, 4, 12, 30, 1, 30, 30, 30][:rows])
        call = {"source": source.to("cuda"), "max_new_tokens": limits}
        if beams:
            plain, recorded = (tfkit.beam_search(model, beams=beams, graphs=given, **call) for given in (None, graphs))
            found, wanted = ([[one.ids.tolist() for one in row] for row in result] for result in (recorded, plain))
        else:
            found, wanted = (tfkit.greedy(model, graphs=given, **call).ids.tolist() for given in (graphs, None))
        assert found == wanted
