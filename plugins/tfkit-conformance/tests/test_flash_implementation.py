"""An active implementation of flash attention is recorded by reports, plans and saved models."""

import json

import pytest
import torch.nn.attention

from tfkit import build, load_catalogue, save
from tfkit.inspection import Target, flash_implementation
from tfkit.view.plan_data import plan_data
from tfkit_conformance.resolve import versions
from tfkit_conformance.verification.verifier import versions as verify_versions


@pytest.mark.parametrize("active", [None, "FA4"])
def test_it_is_recorded_where_it_is_active(monkeypatch, tmp_path, active):
    monkeypatch.setattr(torch.nn.attention, "current_flash_attention_impl", lambda: active)
    catalogue = load_catalogue()
    assert flash_implementation() == active
    assert versions("cpu").get("flash attention") == active
    assert verify_versions(catalogue).get("flash attention") == active
    assert plan_data("m", Target(), [], catalogue).get("flash_implementation") == active
    save(build("specs/transformer-tiny.yaml"), tmp_path / "model")
    assert json.loads((tmp_path / "model" / "plan.json").read_text()).get("flash_implementation") == active
