"""Every built-in norm, position scheme and score function has the parameters that its entry declares, for all its options."""

from __future__ import annotations

import copy

import pytest
import torch

from tfkit.builtin.norm.entries import ENTRIES as NORMS
from tfkit.builtin.position.entries import ENTRIES as POSITIONS
from tfkit.builtin.score.entries import ENTRIES as SCORES
from tfkit.plugin import Parameter
from tfkit.plugin.model_parts import PositionSite, ScoreSite, load

SITES = {
    "norm": [11],
    "position": [PositionSite(12, 3, 8, rows=7), PositionSite(12, 3, 8, rows=7, causal=True)],
    "score": [ScoreSite(3, 8)],
}
CASES = [
    pytest.param(entry, site, id=f"{slot}-{entry.name}-{number}")
    for slot, entries in (("norm", NORMS), ("position", POSITIONS), ("score", SCORES))
    for entry in entries
    if entry.build is not None
    for number, site in enumerate(SITES[slot])
]


def shapes(parameters: tuple[Parameter, ...]) -> dict[str, tuple[int, ...]]:
    return {parameter.name: parameter.shape for parameter in parameters}


@pytest.mark.parametrize(("entry", "site"), CASES)
def test_declared_parameters_are_those_of_the_module(entry, site, variants):
    for options in variants(entry):
        module = load(entry.build)(options, site)
        declared = entry.parameters(options, site)
        weights, buffers = (tuple(one for one in declared if one.buffer is buffer) for buffer in (False, True))
        assert {name: tuple(p.shape) for name, p in module.named_parameters()} == shapes(weights)
        assert {name: tuple(buffer.shape) for name, buffer in module.named_buffers()} == shapes(buffers)
        assert set(module.state_dict()) == set(shapes(declared))


@pytest.mark.parametrize(("entry", "site"), CASES)
def test_module_is_built_on_the_meta_device_and_copied(entry, site, variants):
    for options in variants(entry):
        with torch.device("meta"):
            module = load(entry.build)(options, site)
        assert all(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))
        assert set(copy.deepcopy(module).state_dict()) == set(module.state_dict())


@pytest.mark.parametrize("entries", [NORMS, POSITIONS, SCORES])
def test_every_option_is_described(entries):
    for entry in entries:
        for name, field in entry.options.model_fields.items():
            assert field.description, f"{entry.name}.{name}"
