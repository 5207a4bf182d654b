"""torch's own tools see the model that runs: hooks, the compiler, export, transforms, offloading by accelerate."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from torch import Tensor, nn
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap

import tfkit
from frameworks.small_models import KINDS, build, inputs, searches
from tfkit.plugin.model_parts import FeatureRule, ImageRule, MethodModule
from tiers import EVERY_CASE

SPECS = Path(__file__).parents[2] / "specs"
LARGE = ("t5-small", "t5-v1.1-small", "whisper-small")
SMALL = sorted(
    path.stem
    for path in SPECS.glob("*.yaml")
    if (path.stem.startswith("tiny-") or path.stem.endswith(("-tiny", "-small", "-char", "-mix", "-classifier")))
    and path.stem not in LARGE
)


def small_inputs(model: tfkit.Model) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    given = {}
    for name, rule in model.plan.inputs.items():
        if isinstance(rule, ImageRule):
            given[name] = torch.randn(2, rule.channels, rule.size, rule.size, generator=draw)
        elif isinstance(rule, FeatureRule):
            given[name] = torch.randn(2, 12, rule.size, generator=draw)
        else:
            given[name] = torch.randint(4, rule.vocab_size, (2, 6), generator=draw)
    return given


CONTAINERS = (nn.ModuleDict, nn.ModuleList)
RETURN_MORE = (MethodModule, nn.ParameterList)
"""Modules whose results are not tensors alone, as those of nodes: torch has no backward hooks for these."""


# of embeddings, whose inputs are ids
@pytest.mark.filterwarnings("ignore:Full backward hook is firing when gradients are computed with respect to module outputs")
@pytest.mark.parametrize("name", SMALL)
def test_hooks_of_every_module_fire_in_a_forward_and_a_backward_pass(name: str) -> None:
    spec = tfkit.load_spec(SPECS / f"{name}.yaml", overrides=["expect=null"])
    model = tfkit.build(spec, seed=0).train()
    fired: dict[str, set[str]] = {}
    expected: dict[str, set[str]] = {}
    for path, module in model.named_modules():
        if isinstance(module, CONTAINERS):
            continue
        fired[path], expected[path] = set(), {"before", "after"}
        module.register_forward_pre_hook(lambda *_, path=path: fired[path].add("before"))
        module.register_forward_hook(lambda *_, path=path: fired[path].add("after"))
        if path.count(".") > 1 and not isinstance(module, RETURN_MORE):
            expected[path].add("backward")
            module.register_full_backward_hook(lambda *_, path=path: fired[path].add("backward"))
    loss = sum(output.float().pow(2).mean() for output in model(**small_inputs(model)).values())
    loss.backward()
    assert fired == expected


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_calls_the_modules_of_a_forward_pass(kind: str) -> None:
    model = build(kind)
    called: set[str] = set()
    for path, module in model.named_modules():
        module.register_forward_hook(lambda *_, path=path: called.add(path))
    model(**inputs(model))
    together = set(called)
    called.clear()
    searches(model)
    assert "" in together
    assert called == together


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "hook": lambda module: module.register_forward_hook(lambda module, arguments, output: output * 1.5),
    "pre-hook": lambda module: module.register_forward_pre_hook(lambda module, arguments: (arguments[0] * 1, *arguments[1:])),
    "forward": lambda module: setattr(module, "forward", _doubled(module)),
}


def _doubled(module: nn.Module) -> Callable[..., Tensor]:
    forward = module.forward
    return lambda *arguments: 2 * forward(*arguments)


PLACES = {
    "projection": ("tied", "nodes.decoder.layers.0.branches.cross_attention.key"),
    "feed-forward": ("decoder", "nodes.decoder.layers.0.branches.ffn.input"),
    "tied embedding": ("tied", "nodes.source.embedding"),
    "head": ("untied", "nodes.logits.logits"),
}


WAYS: dict[str, Callable[[tfkit.Model, dict[str, Tensor]], dict[str, Tensor]]] = {
    "compiled": lambda model, given: torch.compile(model, backend="eager", fullgraph=True)(**given),
    "exported": lambda model, given: torch.export.export(model, (), given).module()(**given),
}
MET = [
    (place, change, way)
    for (row, place), (column, change), (number, way) in product(enumerate(PLACES), enumerate(CHANGES), enumerate(WAYS))
    if EVERY_CASE or (row + column) % 2 == number
]
"""Every place with every change, and each of both with both ways."""


@pytest.mark.parametrize(("place", "change", "way"), MET)
def test_a_changed_module_is_changed_in_the_compiled_and_in_the_exported_model(place: str, change: str, way: str) -> None:
    kind, name = PLACES[place]
    plain, model = build(kind, layers=1), build(kind, layers=1)
    CHANGES[change](model.get_submodule(name))
    given = inputs(model)
    with torch.no_grad():
        eager = model(**given).logits
        assert torch.equal(eager, plain(**given).logits) is (change == "pre-hook")
        torch._dynamo.reset()
        torch.testing.assert_close(WAYS[way](model, given)["logits"], eager, rtol=1e-12, atol=1e-12)


def test_every_two_of_place_change_and_way_meet() -> None:
    for one, other in ((0, 1), (0, 2), (1, 2)):
        every = {*product(*((PLACES, CHANGES, WAYS)[factor] for factor in (one, other)))}
        assert {(row[one], row[other]) for row in MET} == every


# of torch's own modules, when they are first imported
@pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.slow
def test_a_hook_acts_in_a_model_that_inductor_compiled() -> None:
    model = build("tied", torch.float32, layers=1)
    given = inputs(model)
    model.nodes["source"].embedding.register_forward_hook(lambda module, arguments, output: output * 1.5)
    with torch.no_grad():
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(model)(**given)["logits"], model(**given).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_functional_call_uses_the_given_parameters(kind: str) -> None:
    model, other = build(kind), build(kind)
    given = inputs(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.3)
    called = functional_call(model, dict(other.named_parameters()), (), given)
    torch.testing.assert_close(called["logits"], other(**given).logits, rtol=0, atol=0)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_each_sample_are_those_of_a_loop(kind: str, training: bool) -> None:
    model = build(kind).train(training)
    given = inputs(model)
    for name in ("source", "target"):
        if name in given:
            given[name][1, 4:] = 0  # padding
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], rows: dict[str, Tensor]) -> Tensor:
        batch = {name: row.unsqueeze(0) for name, row in rows.items()}
        return functional_call(model, parameters, (), {**batch, "labels": batch["target"]})["loss"]

    together = vmap(grad(loss), in_dims=(None, 0))(parameters, given)
    for row in range(3):
        alone = {name: parameter.clone().requires_grad_() for name, parameter in parameters.items()}
        loss(alone, {name: rows[row] for name, rows in given.items()}).backward()
        for name, parameter in alone.items():
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(together[name][row], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_jacobians_are_the_same_in_both_modes(kind: str) -> None:
    model = build(kind)
    model.set_backend("eager")  # torch's fused attention has no forward mode
    given = {name: ids[:1, :3] for name, ids in inputs(model).items()}
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    name = next(name for name, parameter in parameters.items() if parameter.numel() < 60)

    def output(parameter: Tensor) -> Tensor:
        return functional_call(model, {**parameters, name: parameter}, (), given)["logits"]

    backward, forward = jacrev(output)(parameters[name]), jacfwd(output)(parameters[name])
    assert backward.abs().max().item() > 1e-3
    torch.testing.assert_close(forward, backward, rtol=1e-9, atol=1e-12)


def test_dropout_of_a_transform_is_torchs_own() -> None:
    from tfkit.nn.layers import Dropout

    module, x = Dropout(0.5), torch.ones(4, 1000)
    different = vmap(module, randomness="different")(x)
    assert not torch.equal(different[0], different[1])
    assert set(different.unique().tolist()) == {0.0, 2.0}
    with pytest.raises(RuntimeError, match="random"):
        vmap(module)(x)


@pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning")
def test_forward_mode_derivatives_are_differences() -> None:
    model = build("decoder")
    model.set_backend("eager")
    given = inputs(model)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    direction = {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in parameters.items()}

    def output(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(model, parameters, (), given)["logits"]

    _, slope = jvp(output, (parameters,), (direction,))
    step = 1e-6
    ends = [output({name: p + sign * step * direction[name] for name, p in parameters.items()}) for sign in (1, -1)]
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-6)


OFFLOADS = {
    "cpu_offload": lambda model, folder: cpu_offload(model, torch.device("cpu")),
    "disk_offload": lambda model, folder: disk_offload(model, str(folder), torch.device("cpu")),
    "dispatch_model": lambda model, folder: dispatch_model(model, {name: "cpu" for name, _ in model.named_children()}),
}


@pytest.mark.filterwarnings("ignore:Some parameters are on the meta device")
@pytest.mark.parametrize("way", OFFLOADS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_accelerate_offloads_is_the_model(kind: str, way: str, tmp_path: Path) -> None:
    plain = build(kind)
    given = inputs(plain)
    labels = next(reversed(given.values()))
    offloaded = OFFLOADS[way](copy.deepcopy(plain), tmp_path / "weights")
    ours, theirs = plain(**given, labels=labels), offloaded(**given, labels=labels)
    torch.testing.assert_close(theirs.logits, ours.logits, rtol=0, atol=0)
    torch.testing.assert_close(theirs.loss, ours.loss, rtol=0, atol=0)
    assert searches(offloaded) == searches(plain)


@pytest.mark.filterwarnings("ignore:Some parameters are on the meta device")
@pytest.mark.parametrize("name", SMALL)
def test_every_kind_of_part_can_be_offloaded(name: str) -> None:
    plain = tfkit.build(tfkit.load_spec(SPECS / f"{name}.yaml", overrides=["expect=null"]), seed=0).eval()
    given = small_inputs(plain)
    ours, theirs = plain(**given), cpu_offload(copy.deepcopy(plain), torch.device("cpu"))(**given)
    for output, expected in ours.items():
        torch.testing.assert_close(theirs[output], expected, rtol=0, atol=0)
