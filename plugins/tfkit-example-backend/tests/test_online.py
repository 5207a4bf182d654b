"""The example judged as tfkit judges its own backends: by the float64 reference, within the error bound of its class."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tfkit_example_backend as plugin
import torch
from tfkit_example_backend.online import attend

from tfkit.catalogue import load_catalogue
from tfkit.slots.attention import judge
from tfkit.testing.cases import CASES, request_of
from tfkit.testing.compare import error_ratios


@pytest.mark.parametrize("block", [4, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_output_and_gradients_are_within_the_bound(case, dtype, block):
    inputs, options = replace(case.inputs(dtype), return_lse=True), plugin.OnlineOptions(block=block)
    assert judge(plugin.ONLINE, request_of(inputs), options).accepted
    ratios = error_ratios(attend, options, plugin.ONLINE.capabilities.numerics, inputs, case.grad_output(dtype))
    assert max(ratios.values()) <= 1, ratios


def test_dropout_and_weights_are_refused():
    inputs = CASES[0].inputs(torch.float32)
    for unwanted in (replace(inputs, dropout=0.1), replace(inputs, return_weights=True)):
        assert not judge(plugin.ONLINE, request_of(unwanted), plugin.OnlineOptions()).accepted


def test_the_hook_offers_the_entry():
    catalogue = load_catalogue(()).with_plugin(plugin, "example")
    assert catalogue.find("backend", "example.online") is plugin.ONLINE
