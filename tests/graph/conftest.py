"""Specs and graphs from a few lines of text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

import tfkit
from tfkit import Diagnostic
from tfkit.nn.runtime import inputs as input_rules

DEFAULTS = """tfkit: 1
name: graph
defaults:
  d_model: 24
  vocab_size: 19
  placement: pre
  norm: layer_norm
  attention: {num_heads: 6}
  ffn: {d_ff: 20, activation: gelu}
"""


@pytest.fixture
def spec_from(catalogue: tfkit.Catalogue) -> Callable[..., tfkit.ModelSpec]:
    def make(nodes: str, *overrides: str) -> tfkit.ModelSpec:
        return tfkit.parse_spec(DEFAULTS + nodes, catalogue, overrides, file="spec.yaml")

    return make


@pytest.fixture
def graph_from(spec_from: Callable[..., tfkit.ModelSpec]) -> Callable[..., tfkit.Graph]:
    def make(nodes: str, *overrides: str) -> tfkit.Graph:
        return tfkit.graph_of(spec_from(nodes, *overrides))

    return make


@pytest.fixture
def errors_of(graph_from: Callable[..., tfkit.Graph]) -> Callable[..., list[Diagnostic]]:
    def make(nodes: str, *overrides: str) -> list[Diagnostic]:
        with pytest.raises(tfkit.SpecError) as error:
            graph_from(nodes, *overrides)
        return list(error.value.diagnostics)

    return make


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of fake tensors: numbers that are not there cannot be looked at."""
    for name in ("check_ids", "_check_numbers"):
        monkeypatch.setattr(input_rules, name, lambda *arguments: None)


@pytest.fixture
def mesh_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[ProcessGroup], None]:
    """Makes the mesh of a group of processes now: with fake tensors it cannot be made, since it holds numbers."""

    def make(group: ProcessGroup) -> None:
        mesh = DeviceMesh.from_group(group, "cpu")
        monkeypatch.setattr(DeviceMesh, "from_group", lambda *arguments: mesh)

    return make
