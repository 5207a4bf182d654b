"""torch.compile without a graph break, torch.export, autocast, copies and dtypes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import Model
from tfkit.inspection import Padding
from tfkit.plugin import AttentionInputs, AttentionOutput, Mask
from tfkit.plugin.model_parts import NodeOutput

DESIGNS: list[dict[str, Any]] = [
    {"position": "sinusoidal", "placement": "post"},
    {"position": "rotary_half", "placement": "sandwich", "activation": "swiglu"},
    {"position": "{kind: relative_t5, buckets: 6}", "placement": "parallel"},
    {"position": "relative_shaw", "placement": "deepnorm"},
    {"position": "alibi", "placement": "pre"},
    {"position": "{kind: learned, max_len: 16, count: visible}", "placement": "pre"},
]


@pytest.fixture
def pair(ids_of: Callable[..., Tensor]) -> dict[str, Tensor]:
    source, target = ids_of(3, 9, 1), ids_of(3, 8, 2)
    source[1, 6:] = 0
    target[2, 5:] = 0
    return {"source": source, "target": target}


def loss_of(outputs: dict[str, Tensor]) -> Tensor:
    return outputs["logits"].logsumexp(2).mean()


MANY = """
nodes:
  source:  {kind: tokens, scale: sqrt_d_model, position: {kind: learned, max_len: 16, count: visible}}
  target:  {kind: tokens, share: source, start_id: 1, position: sinusoidal}
  encoder:
    kind: stack
    input: source
    position: {kind: relative_t5, buckets: 6}
    placement: post
    num_layers: 1
  decoder:
    kind: stack
    input: target
    memory: encoder
    causal: true
    ffn: {activation: swiglu}
    attention: {sink: true, output_gate: headwise, value_residual: learned}
    layers: [{position: relative_shaw, placement: parallel}, {position: rotary_half, placement: sandwich}]
  logits:  {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "checkpoint", [pytest.param(False, id="kept"), pytest.param(True, id="checkpoint", marks=pytest.mark.exhaustive)]
)
def test_compiled_whole_forward_and_backward(
    checkpoint: bool, model_of: Callable[..., Model], pair: dict[str, Tensor], rounding: Callable[..., float]
) -> None:
    flag = str(checkpoint).lower()
    model = model_of(MANY, f"encoder.checkpoint={flag}", f"decoder.checkpoint={flag}").train()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    want = model(**pair)
    wanted = torch.autograd.grad(loss_of(want), list(model.parameters()))
    got = compiled(**pair)
    found = torch.autograd.grad(loss_of(got), list(model.parameters()))
    bound = rounding(model, want["logits"].detach(), 9)
    assert float((got["logits"] - want["logits"]).detach().abs().max()) <= bound
    for one, other in zip(found, wanted, strict=True):
        assert float((one - other).abs().max()) <= bound * max(1.0, float(other.abs().max()))


@pytest.mark.slow
def test_weights_and_masks_compile_too(model_of: Callable[..., Model], pair: dict[str, Tensor]) -> None:
    model = model_of("encoder-decoder", "encoder.num_layers=1")
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    masks = {"source": torch.ones(3, 9, dtype=torch.bool)}
    lengths = {"target": torch.tensor([8, 3, 1])}
    arguments = {**pair, "masks": masks, "lengths": lengths, "weights": ["*.cross_attention"]}
    with torch.no_grad():
        want, got = model(**arguments), compiled(**arguments)
    assert set(got["weights"]) == {"decoder.0.cross_attention", "decoder.1.cross_attention"}
    torch.testing.assert_close(got["logits"], want["logits"])
    torch.testing.assert_close(got["weights"], want["weights"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # what is computed exactly could be faster
def test_inductor_compiles_it(pair: dict[str, Tensor], model_of: Callable[..., Model], rounding: Callable[..., float]) -> None:
    model = model_of("encoder-decoder", "encoder.num_layers=1", "decoder.num_layers=1", position="rotary_half").to("cuda")
    model.retarget(torch.device("cuda"), torch.float32)
    pair = {name: ids.to("cuda") for name, ids in pair.items()}
    torch._dynamo.reset()
    with torch.no_grad():
        want = model(**pair)["logits"]
        got = torch.compile(model, fullgraph=True)(**pair)["logits"]
    assert float((got - want).abs().max()) <= rounding(model, want, 9)


def test_a_backend_that_cannot_be_compiled_is_refused_in_a_compiled_model(
    model_of: Callable[..., Model], pair: dict[str, Tensor]
) -> None:
    model = model_of("encoder-decoder", "encoder.num_layers=1", "decoder.num_layers=1")
    model.set_backend("flex", "encoder.0.self_attention")
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(Exception, match=r"encoder\.0\.self_attention.*flex") as refusal:
        torch.compile(model, fullgraph=True, backend="aot_eager")(**pair)
    assert "eager" in str(refusal.value)


@pytest.mark.slow
def test_a_new_backend_reaches_a_model_that_is_compiled_already(
    model_of: Callable[..., Model], pair: dict[str, Tensor]
) -> None:
    model = model_of("decoder", "body.num_layers=1", backend="eager")
    tokens = pair["target"]
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        compiled(tokens=tokens)
        model.set_backend("flex")
        with pytest.raises(Exception, match="flex"):
            compiled(tokens=tokens)


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS[2:3] + DESIGNS[5:], ids=lambda design: design["position"].split(",")[0].strip("{"))
def test_exported(
    design: dict[str, str], model_of: Callable[..., Model], pair: dict[str, Tensor], rounding: Callable[..., float]
) -> None:
    model = model_of(**design)
    with torch.no_grad():
        program = torch.export.export(model, (), kwargs=pair, strict=False)
        want = model(**pair)["logits"]
        got = program.module()(**pair)["logits"]
    assert float((got - want).abs().max()) <= rounding(model, want, 9)


class Named(torch.nn.Module):
    """torch.export gives sizes that vary to named arguments only, not to `**inputs`."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.model(source=source, target=target)["logits"]


@pytest.mark.slow
def test_exported_with_lengths_that_vary(
    model_of: Callable[..., Model], ids_of: Callable[..., Tensor], rounding: Callable[..., float]
) -> None:
    model = model_of(position="rotary_half")
    batch, source, target = (
        torch.export.Dim("batch", min=2),
        torch.export.Dim("source", min=2),
        torch.export.Dim("target", min=2),
    )
    shapes = {"source": {0: batch, 1: source}, "target": {0: batch, 1: target}}
    example = {"source": ids_of(3, 9, 1), "target": ids_of(3, 8, 2)}
    with torch.no_grad():
        program = torch.export.export(Named(model), (), kwargs=example, dynamic_shapes=shapes, strict=False).module()
        for size, rows in ((5, 12), (60, 70)):
            other = {"source": ids_of(2, size, 3), "target": ids_of(2, rows, 4)}
            want, got = model(**other)["logits"], program(**other)
            assert float((got - want).abs().max()) <= rounding(model, want, 70)


def test_autocast_is_close_and_never_reaches_a_backend(
    model_of: Callable[..., Model], pair: dict[str, Tensor], rounding: Callable[..., float], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfkit.builtin.attention import eager

    model = model_of(position="rotary_half")
    with torch.no_grad():
        want = model(**pair)["logits"]
    seen: list[tuple[bool, torch.dtype]] = []

    def spy(inputs: Any, options: Any) -> Any:
        seen.append((torch.is_autocast_enabled("cpu"), inputs.query.dtype))
        return eager.attend(inputs, options)

    model.set_backend("eager")
    for attention, index, _ in model.attention_sites():
        bound = attention.choices[index].candidates[0]
        attention.choices[index].candidates = (type(bound)(bound.entry, bound.options, spy, bound.prepare, bound.name),)
    model.train()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(**pair)
        loss = loss_of(outputs)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert seen == [(False, torch.bfloat16)] * len(model.sites)
    got = outputs["logits"].detach().float()
    assert bool(got.isfinite().all())
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    # Products round their inputs to 8 bits and are summed in float32: a few roundings per layer, not one per term.
    layers = len(model.sites) + 4
    assert float((got - want).abs().max()) <= 4 * layers * 2.0**-8 * float(want.abs().max())
    assert float((got - want).abs().max()) > 0


@pytest.mark.slow
def test_incremental_decoding_under_autocast(model_of: Callable[..., Model], pair: dict[str, Tensor]) -> None:
    model = model_of(position="rotary_half")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        want = model(**pair)["logits"].float()
        state = model.start(source=pair["source"])
        got = torch.cat([model.step(state, pair["target"][:, at : at + 1])["logits"].float() for at in range(8)], 1)
    real = pair["target"] != 0
    assert float((got - want)[real].abs().max()) <= 4 * 10 * 2.0**-8 * float(want.abs().max())


def test_a_copy_is_a_model_of_its_own(model_of: Callable[..., Model], pair: dict[str, Tensor]) -> None:
    model = model_of()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        want = model(**pair)["logits"]
        assert torch.equal(twin(**pair)["logits"], want)
        for parameter in twin.parameters():
            parameter.zero_()
        twin.set_backend("sdpa")
        assert torch.equal(model(**pair)["logits"], want)
    assert set(twin.sites.values()) == {"sdpa"}
    assert set(model.sites.values()) == {"auto"}


def test_a_state_dict_makes_another_model_the_same(
    spec_of: Callable[..., tfkit.ModelSpec], model_of: Callable[..., Model], pair: dict[str, Tensor]
) -> None:
    model, other = model_of(), tfkit.build(spec_of(), seed=5).eval()
    with torch.no_grad():
        want = model(**pair)["logits"]
        assert not torch.equal(other(**pair)["logits"], want)
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(**pair)["logits"], want)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("design", DESIGNS, ids=lambda design: design["position"].split(",")[0].strip("{"))
def test_other_dtypes(
    dtype: torch.dtype, design: dict[str, str], model_of: Callable[..., Model], pair: dict[str, Tensor]
) -> None:
    model, exact = model_of(dtype=dtype, **design), model_of(dtype=torch.float64, **design)
    exact.load_state_dict(model.state_dict())
    with torch.no_grad():
        got, want = model(**pair)["logits"], exact(**pair)["logits"]
    assert got.dtype is dtype
    # One rounding to the storage type per product, norm, activation and residual: some 16 per sub-layer.
    error = 16 * 10 * torch.finfo(dtype).eps * float(want.abs().max())
    assert float((got.double() - want).abs().max()) <= error


@pytest.mark.parametrize("kind", [NodeOutput, Padding, Mask, AttentionInputs, AttentionOutput])
def test_signals_have_plain_defaults(kind):
    """Dynamo of torch 2.11 cannot make an object that stands as a default."""
    defaults = [each.default for each in fields(kind) if each.default is not MISSING]
    assert all(default is None or isinstance(default, (bool, int, float, str)) for default in defaults)
    assert all(each.default_factory is MISSING for each in fields(kind))


@pytest.mark.parametrize("whole", [False, True])
def test_a_backend_that_cannot_be_compiled_is_refused_as_everywhere(
    whole: bool, model_of: Callable[..., Model], pair: dict[str, Tensor]
) -> None:
    model = model_of(backend="flex")
    torch._dynamo.reset()
    message = r"TFK060 encoder\.0\.self_attention: backend flex"
    with pytest.raises(tfkit.BackendRefused, match=message) as refused, torch.no_grad():
        torch.compile(model, backend="eager", fullgraph=whole)(**pair)
    assert "flex_attention compiled for the CPU is not reliable" in refused.value.diagnostics[0].message
