"""The shipped specs: each loads, says where it comes from and what it comes to, and together they use every built-in part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from tfkit.plugin import Component
from tfkit.plugin.model_parts import ImageRule
from tfkit.spec import to_yaml

PATHS = sorted((Path(__file__).parents[1] / "specs").glob("*.yaml"))
NOT_ASKED_FOR = {("backend", "auto")}
"""`auto` is a word of the language."""


@pytest.fixture(scope="module")
def specs(catalogue: tfkit.Catalogue) -> dict[str, tfkit.ModelSpec]:
    return {path.stem: tfkit.load_spec(path, catalogue) for path in PATHS}


def parts_in(value: Any) -> Iterator[Component]:
    """Every part of a spec, however deep."""
    if isinstance(value, Component):
        yield value
        yield from parts_in(value.options)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from parts_in(item)
    elif isinstance(value, dict):
        yield from parts_in(list(value.values()))
    elif hasattr(type(value), "model_fields"):
        yield from parts_in([getattr(value, name) for name in type(value).model_fields])


@pytest.mark.parametrize("name", [path.stem for path in PATHS])
def test_a_spec_has_a_source_and_the_expected_parameter_count(name: str, specs: dict[str, tfkit.ModelSpec]) -> None:
    spec = specs[name]
    assert spec.reference.startswith("https://")
    assert spec.description
    assert spec.expect.parameters is not None
    assert tfkit.graph_of(spec).parameters() == spec.expect.parameters


@pytest.mark.parametrize("name", [path.stem for path in PATHS])
def test_a_resolved_spec_loads_back_equal(name: str, specs: dict[str, tfkit.ModelSpec], catalogue: tfkit.Catalogue) -> None:
    text = to_yaml(specs[name])
    again = tfkit.parse_spec(text, catalogue)
    assert again == specs[name]
    assert to_yaml(again) == text


NOT_IN_SPECS = ("weight_map", "int8_kernel", "beam_top_k", "step_recorder", "score_filter")


def test_every_builtin_part_of_every_slot_is_used(specs: dict[str, tfkit.ModelSpec], catalogue: tfkit.Catalogue) -> None:
    used = {id(part.entry) for spec in specs.values() for part in parts_in(spec)}
    unused = [
        f"{slot} {name}"
        for slot, registered in catalogue.registered.items()
        for name, offer in registered.items()
        if offer.plugin == "builtin" and slot not in NOT_IN_SPECS and id(offer.entry) not in used
    ]
    assert unused == []


def test_names_are_distinct_and_published_counts_are_exact(specs: dict[str, tfkit.ModelSpec]) -> None:
    names = [spec.name for spec in specs.values()]
    assert len(set(names)) == len(names)
    published = {
        "transformer-base": 63_082_496,
        "transformer-big": 214_245_376,
        "gpt2": 124_439_808,
        "llama3-8b": 8_030_261_248,
        "bert-base": 109_482_240,
        "t5-small": 60_506_624,
        "gemma2-9b": 9_241_705_984,
        "roberta": 124_697_433,
    }
    assert {name: specs[name].expect.parameters for name in published} == published


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in PATHS])
def test_a_small_one_runs_forward_and_backward(
    name: str, specs: dict[str, tfkit.ModelSpec], catalogue: tfkit.Catalogue
) -> None:
    spec = specs[name]
    if (spec.expect.parameters or 0) > 7e7:
        tfkit.build(spec, catalogue, device="meta")  # built only
        return
    graph = tfkit.graph_of(spec)
    model = tfkit.build(spec, catalogue, backend=["sdpa", "eager"])
    ids = {}
    for number, node in enumerate(graph.inputs()):
        rule = model.plan.inputs[node.name]
        if isinstance(rule, ImageRule):
            ids[node.name] = torch.rand(2, rule.channels, rule.size, rule.size)
            continue
        most = min(90, rule.vocab_size - 1)
        ids[node.name] = torch.randint(3, most, (2, 4 + number), generator=torch.Generator().manual_seed(number))
        ids[node.name][0, -1] = most if rule.pad_id is None else rule.pad_id
        if rule.end_id is not None:
            ids[node.name][:, 2] = rule.end_id
    outputs = model(**ids)
    sizes = {"B": 2, **{f"L_{name}": tensor.shape[1] for name, tensor in ids.items()}}
    for output, tensor in outputs.items():
        assert tuple(tensor.shape) == tuple(sizes.get(axis, axis) for axis in graph.nodes[output].signal.axes)
        assert bool(tensor.isfinite().all())
    sum(tensor.pow(2).mean() for tensor in outputs.values()).backward()
    idle = [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None]
    assert idle == []
