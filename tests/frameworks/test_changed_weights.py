"""Libraries that change weights or how they are computed: averages, parametrisations, pruning, quantisation, new parts."""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim.swa_utils import AveragedModel
from torch_ema import ExponentialMovingAverage

import tfkit
from fixtures import SPECS
from frameworks.small_models import build, ids, inputs, searches
from small_translator import SOURCES, small
from tfkit import InputError

PARTS = {
    "projection": ("tied", "nodes.encoder.layers.0.branches.self_attention.query"),
    "feed-forward": ("decoder", "nodes.decoder.layers.1.branches.ffn.output"),
    "embedding of a tied head": ("tied", "nodes.source.embedding"),
    "embedding": ("untied", "nodes.source.embedding"),
    "head": ("untied", "nodes.logits.logits"),
}


def scores(model: tfkit.Model) -> list[float]:
    """Of a search that packs the weights, as a `Translator` makes it."""
    found = tfkit.generate_batched(model, SOURCES, tfkit.Search(beams=3, extra_length=20))
    return [hypotheses[0].score for hypotheses in found]


def test_searches_use_the_weights_of_torch_ema_while_they_are_in_place() -> None:
    model = small()
    average = ExponentialMovingAverage(model.parameters(), decay=0.5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.sin(torch.arange(float(parameter.numel())).view_as(parameter)))
    average.update()
    raw = scores(model)
    assert scores(model) == raw  # packed by now
    with average.average_parameters():
        averaged = scores(model)
        assert averaged == scores(copy.deepcopy(model))
    assert averaged != raw
    assert scores(model) == raw
    average.copy_to()
    assert scores(model) == averaged


WRITES = {
    "data": lambda parameter: parameter.data.mul_(1.5),
    "numpy": lambda parameter: numpy.multiply(parameter.detach().numpy(), 1.5, out=parameter.detach().numpy()),
    "foreach": lambda parameter: torch._foreach_copy_([parameter.data], [parameter.data * 1.5]),
}


@pytest.mark.parametrize("write", WRITES)
def test_searches_see_writes_that_torch_does_not_count(write: str) -> None:
    model = small()
    before = scores(model)
    assert scores(model) == before
    for parameter in model.parameters():
        WRITES[write](parameter)
    after = scores(model)
    assert after != before
    assert after == scores(copy.deepcopy(model))


@pytest.mark.parametrize("part", ["query", "value", "output"])
def test_searches_see_that_numbers_of_a_weight_change_places(part: str) -> None:
    model = small()
    weights = [module.weight for name, module in model.named_modules() if name.endswith(f"attention.{part}")]
    with torch.no_grad():
        for weight in weights:
            nn.init.eye_(weight)
    before = scores(model)
    assert scores(model) == before
    rows = torch.tensor([2, 3, 0, 1, *range(4, 32)])
    for weight in weights:
        weight.data.copy_(weight.data[rows])  # the sums of all rows and columns stay
    after = scores(model)
    assert after != before
    assert after == scores(copy.deepcopy(model))


def test_an_averaged_model_is_a_model_of_its_own() -> None:
    model = build("tied")
    averaged = AveragedModel(model)
    given, before = inputs(model), searches(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert searches(averaged.module) == before
    torch.testing.assert_close(averaged(**given).logits, build("tied")(**given).logits, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("way", ["spectral_norm", "weight_norm", "spectral_norm of hooks", "weight_norm of hooks", "pruning"])
@pytest.mark.parametrize("part", PARTS)
def test_a_computed_weight_acts_and_learns(part: str, way: str) -> None:
    kind, name = PARTS[part]
    model = build(kind)
    given = inputs(model)
    plain, module = model(**given).logits, model.get_submodule(name)
    torch.manual_seed(0)
    if way == "pruning":
        prune.random_unstructured(module, "weight", amount=0.5)
    elif way == "spectral_norm":
        parametrizations.spectral_norm(module)
        model.eval()
    elif way == "weight_norm":
        parametrizations.weight_norm(module)
        with torch.no_grad():
            module.parametrizations.weight.original0.mul_(2)
    elif way == "spectral_norm of hooks":
        nn.utils.spectral_norm(module)
        model.eval()
    else:
        nn.utils.weight_norm(module)
        with torch.no_grad():
            module.weight_g.mul_(2)
    outputs = model(**given, labels=next(reversed(given.values())))
    outputs.loss.backward()
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in learning)
    computed = module.weight.detach().clone()
    by_hand = build(kind)
    with torch.no_grad():
        by_hand.get_submodule(name).weight.copy_(computed)
    torch.testing.assert_close(outputs.logits, by_hand(**given).logits, rtol=1e-12, atol=1e-12)
    assert (outputs.logits - plain).abs().max().item() > 1e-6
    assert searches(model) == searches(by_hand)
    if way == "pruning":
        prune.remove(module, "weight")
    elif way in ("spectral_norm", "weight_norm"):
        parametrize.remove_parametrizations(module, "weight")
    elif way == "spectral_norm of hooks":
        nn.utils.remove_spectral_norm(module)
    else:
        nn.utils.remove_weight_norm(module)
    torch.testing.assert_close(model(**given).logits, outputs.logits, rtol=1e-12, atol=1e-12)


# torch announces the end of its eager quantisation
@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated:DeprecationWarning", "ignore:.*quantize_per_tensor")
@pytest.mark.parametrize("kind", ["tied", "untied", "decoder", "recurrent"])
def test_dynamic_quantisation_quantises_every_linear_map(kind: str) -> None:
    if not torch.backends.quantized.supported_engines[1:]:
        pytest.skip("not run: this torch has no engine of quantised products")
    model = build(kind, torch.float32)
    given = inputs(model)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert linears
    for name in linears:
        assert type(quantised.get_submodule(name)) is torch.ao.nn.quantized.dynamic.Linear
    exact = model(**given).logits
    assert 0 < (quantised(**given).logits - exact).abs().max().item() < 0.2 * exact.abs().max().item()
    assert len(searches(quantised)[0]) == 3
    assert searches(model)  # the model itself is as before
    assert [name for name, module in model.named_modules() if isinstance(module, nn.Linear)] == linears


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated:DeprecationWarning")
def test_a_part_of_a_model_is_quantised_by_name_or_not_at_all() -> None:
    model = build("tied", torch.float32)
    with pytest.raises(InputError, match=r"no linear map.*quantise the whole model"):
        torch.ao.quantization.quantize_dynamic(model.nodes["decoder"], {nn.Linear}, dtype=torch.qint8)
    name = "nodes.decoder.layers.0.branches.ffn.output"
    chosen = {name: torch.ao.quantization.default_dynamic_qconfig}
    quantised = torch.ao.quantization.quantize_dynamic(model, chosen, dtype=torch.qint8)
    kinds = {path: type(module) for path, module in quantised.named_modules() if isinstance(module, nn.Linear)}
    assert set(kinds.values()) == {nn.Linear}
    assert type(quantised.get_submodule(name)) is torch.ao.nn.quantized.dynamic.Linear


def test_a_head_and_an_embedding_may_be_replaced() -> None:
    model = build("untied")
    given = inputs(model)
    head = nn.Linear(16, 53, bias=True, dtype=torch.float64)
    features: list[torch.Tensor] = []
    head.register_forward_hook(lambda module, arguments, output: features.append(arguments[0]))
    model.nodes["logits"].logits = head
    logits = model(**given).logits
    expected = nn.functional.linear(features[0], head.weight, head.bias) + model.nodes["logits"].bias
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)
    for kind in ("tied", "untied"):
        model, plain = build(kind), build(kind)
        table = nn.Embedding(53, 16, dtype=torch.float64)
        with torch.no_grad():
            plain.nodes["source"].embedding.weight.copy_(table.weight)
        model.nodes["source"].embedding = table
        torch.testing.assert_close(model(**given).logits, plain(**given).logits, rtol=1e-12, atol=1e-12)
        assert searches(model) == searches(plain)


def test_a_module_of_another_width_is_named_and_the_model_goes_on_after_it_is_put_back() -> None:
    model = build("tied")
    given, name = inputs(model), "nodes.decoder.layers.0.branches.ffn.input"
    before, module = model(**given).logits, model.get_submodule(name)
    model.set_submodule(name, nn.Linear(8, 24, dtype=torch.float64))
    words = rf"`{name}.weight` has the shape \(24, 8\), and the spec of the model makes it \(24, 16\).*call of `{name}` failed"
    with pytest.raises(InputError, match=words):
        model(**given)
    with pytest.raises(InputError, match=words):
        tfkit.greedy(model, source=given["source"])
    model.set_submodule(name, module)
    assert torch.equal(model(**given).logits, before)


ONE_OUTPUT: dict[str, dict[str, nn.Module]] = {
    "tied": {
        "nodes.source.embedding": nn.Embedding(53, 1),
        "nodes.encoder.layers.1.branches.self_attention.output": nn.Linear(16, 1),
        "nodes.decoder.layers.0.branches.ffn.output": nn.Linear(24, 1),
        "nodes.decoder.layers.0.branches.ffn.gate": nn.Linear(16, 1),
    },
    "untied": {"nodes.logits.logits": nn.Linear(16, 1, bias=False)},
    "recurrent": {"nodes.decoder.cross_attention.score.key": nn.Linear(24, 1)},
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, modules in ONE_OUTPUT.items() for name in modules])
def test_a_module_with_one_output_is_named_though_torch_would_repeat_it(kind: str, name: str) -> None:
    model = build(kind, torch.float32)
    given = inputs(model)
    before, module = model(**given).logits, model.get_submodule(name)
    model.set_submodule(name, ONE_OUTPUT[kind][name])
    others = {key: value for key, value in given.items() if key != "target"}
    start = others or {"batch": 2}
    words = rf"TFK071.*`{name}.weight` has the shape .*\b1\b.*, and the spec of the model makes it"
    for _ in range(2):
        with pytest.raises(InputError, match=words):
            model(**given)
        with pytest.raises(InputError, match=words):
            model.start(**start)
    model.set_submodule(name, module)
    assert torch.equal(model(**given).logits, before)


def test_a_classifier_may_become_a_regression() -> None:
    model = tfkit.build(SPECS / "bert-classifier-small.yaml")
    model.nodes["label"].linear = nn.Linear(128, 1)
    assert model(tokens=ids()).label.shape == (3, 1)


def test_a_projection_of_another_width_is_named_though_the_attention_refuses_its_heads() -> None:
    model, name = build("tied"), "nodes.decoder.layers.0.branches.self_attention.query"
    model.set_submodule(name, nn.Linear(16, 24, dtype=torch.float64))
    with pytest.raises(
        InputError, match=rf"`{name}.weight` has the shape \(24, 16\), and the spec of the model makes it \(16, 16\)"
    ):
        model(**inputs(model))


def test_a_layer_that_was_moved_is_named_and_set_backend_serves_it() -> None:
    model = build("tied")
    given, layers = inputs(model), model.nodes["encoder"].layers
    layers[0], layers[1] = layers[1], layers[0]
    with pytest.raises(InputError, match=r"`encoder\.0\.self_attention` has no attention backend, because its layer was moved"):
        model(**given)
    model.set_backend("eager")
    swapped = build("tied")
    weights = {name: tensor.clone() for name, tensor in swapped.state_dict().items()}
    for name, tensor in weights.items():
        for one, other in (("layers.0.", "layers.1."), ("layers.1.", "layers.0.")):
            if name.startswith(f"nodes.encoder.{one}"):
                swapped.state_dict()[name.replace(one, other)].copy_(tensor)
    torch.testing.assert_close(model(**given).logits, swapped(**given).logits, rtol=1e-12, atol=1e-12)


def test_a_part_on_another_device_is_named() -> None:
    model = build("tied")
    given = inputs(model)
    model.nodes["encoder"].layers[1].to("meta")
    with pytest.raises(InputError, match=r"`nodes\.encoder\.layers\.1\..*` is on meta, and most of the model on cpu"):
        model(**given)


def test_the_exception_of_a_hook_comes_through_and_a_decoding_state_goes_on() -> None:
    class Refused(Exception):
        pass

    def refuse(*_: Any) -> None:
        raise Refused("not today")

    model = build("tied")
    state = model.start(source=ids())
    first = model.step(state, torch.full((3, 1), 2)).logits
    other = model.start(source=ids())
    model.step(other, torch.full((3, 1), 2))
    name = "nodes.decoder.layers.1.branches.ffn.output"
    handle = model.get_submodule(name).register_forward_hook(refuse)
    with pytest.raises(Refused, match="not today") as caught:
        model.step(state, torch.full((3, 1), 5))
    if sys.version_info >= (3, 11):
        assert f"`{name}`" in caught.value.__notes__[0]
    handle.remove()
    again, expected = (model.step(one, torch.full((3, 1), 6)).logits for one in (state, other))
    assert torch.equal(again, expected)
    assert first.shape == again.shape
