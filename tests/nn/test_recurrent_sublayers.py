"""SSRU and average attention: their papers' equations token by token, steps with a state, beams, padding, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import Model
from tfkit.nn.recurrent_sublayers import scan

KINDS = {"ssru": "ssru", "average_attention": "{kind: average_attention, d_ff: 20}"}
SPEC = """
tfkit: 1
name: small
defaults:
  d_model: 12
  vocab_size: 11
  pad_id: 0
  position: {{kind: sinusoidal, count: visible}}
  placement: pre
  norm: layer_norm
  attention: {{num_heads: 2}}
  ffn: {{d_ff: 20, activation: relu}}
nodes:
  source:  {{kind: tokens}}
  target:  {{kind: tokens, share: source, start_id: 1, end_id: 2}}
  encoder: {{kind: stack, input: source, num_layers: 1}}
  decoder: {{kind: stack, input: target, memory: encoder, num_layers: 2, causal: true,
            sublayers: [{part}, cross_attention, ffn]}}
  logits:  {{kind: token_logits, input: decoder, share: source}}
outputs: [logits]
"""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(kind: str, catalogue: tfkit.Catalogue) -> Model:
    spec = tfkit.parse_spec(SPEC.format(part=KINDS[kind]), catalogue)
    model = tfkit.build(spec, catalogue, seed=2, dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4)
    return model


SOURCE = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]])
TARGET = torch.tensor([[1, 4, 9, 3, 3, 10, 7], [1, 6, 5, 8, 4, 0, 0]])


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def mapped(module: Any, x: Tensor) -> Tensor:
    return x @ module.weight.T + (0 if module.bias is None else module.bias)


def ssru_by_loop(part: Any, tokens: list[Tensor]) -> list[Tensor]:
    """Kim et al. 2019, equations 4 to 6, of one row."""
    state, outputs = torch.zeros(12, dtype=torch.float64), []
    for x in tokens:
        f = sigmoid(mapped(part.forget, x))
        state = f * state + (1 - f) * mapped(part.input, x)
        outputs.append(state.clamp(min=0))
    return outputs


def average_by_loop(part: Any, tokens: list[Tensor]) -> list[Tensor]:
    """Zhang et al. 2018, equations 2 to 5, of one row."""
    outputs = []
    for t, x in enumerate(tokens):
        mean = torch.stack(tokens[: t + 1]).sum(0) / (t + 1)
        g = mapped(part.ffn.output, mapped(part.ffn.input, mean).clamp(min=0))
        gates = sigmoid(mapped(part.gate, torch.cat([x, g])))
        outputs.append(gates[:12] * x + gates[12:] * g)
    return outputs


LOOPS = {"ssru": ssru_by_loop, "average_attention": average_by_loop}


@torch.no_grad()
def test_it_is_the_paper_s_equation_token_by_token(kind: str, model: Model):
    part = model.nodes["decoder"].layers[0].branches[kind]
    seen: list[tuple[Tensor, Tensor]] = []
    hook = part.register_forward_hook(lambda module, arguments, output: seen.append((arguments[0], output)))
    model(source=SOURCE, target=TARGET)
    hook.remove()
    for x, output, count in zip(*seen[0], (7, 5), strict=True):
        torch.testing.assert_close(output[:count], torch.stack(LOOPS[kind](part, [*x[:count]])), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13])
def test_the_scan_is_the_loop_and_so_is_its_gradient(length: int):
    generator = torch.Generator().manual_seed(length)
    keep, new = torch.rand(2, 2, length, 3, generator=generator, dtype=torch.float64).requires_grad_().unbind(0)
    keep, new = keep.detach().requires_grad_(), new.detach().requires_grad_()
    first = torch.rand(2, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    state, states = first, []
    for t in range(length):
        state = keep[:, t] * state + new[:, t]
        states.append(state)
    wanted, got = torch.stack(states, 1), scan(keep, new, first)
    torch.testing.assert_close(got, wanted, rtol=1e-13, atol=1e-13)
    weights = torch.randn(wanted.shape, generator=generator, dtype=torch.float64)
    gradients = [torch.autograd.grad((one * weights).sum(), (keep, new, first)) for one in (got, wanted)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_steps_compute_what_the_whole_sequence_computes(model: Model):
    whole = model(source=SOURCE, target=TARGET).logits
    state = model.start(source=SOURCE)
    steps = [model.step(state, TARGET[:, :3]).logits, *(model.step(state, TARGET[:, t : t + 1]).logits for t in range(3, 7))]
    real = TARGET != 0
    torch.testing.assert_close(torch.cat(steps, 1)[real], whole[real], rtol=1e-11, atol=1e-11)


@torch.no_grad()
def test_padding_on_the_left_of_a_prompt_changes_nothing(model: Model):
    """Nor does a step that fails after the sub-layer."""
    plain = model.start(source=SOURCE[:1])
    padded = model.start(source=SOURCE[:1])
    wanted = model.step(plain, TARGET[:1, :4]).logits[:, -1]
    prompt = torch.cat([torch.zeros(1, 2, dtype=torch.int64), TARGET[:1, :4]], 1)
    got = model.step(padded, prompt, prompt != 0).logits[:, -1]
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11)
    hook = model.nodes["logits"].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.step(padded, TARGET[:1, 4:5])
    hook.remove()
    torch.testing.assert_close(
        model.step(padded, TARGET[:1, 4:5]).logits, model.step(plain, TARGET[:1, 4:5]).logits, rtol=1e-11, atol=1e-11
    )


def test_beams_of_a_batch_are_those_of_each_row(model: Model):
    rules: dict[str, Any] = {"beams": 3, "n_best": 3, "max_new_tokens": 8}
    together = tfkit.beam_search(model, source=SOURCE, lengths={"source": torch.tensor([4, 3])}, **rules)
    for row, length in enumerate((4, 3)):
        [alone] = tfkit.beam_search(model, source=SOURCE[row : row + 1, :length], **rules)
        assert [one.ids.tolist() for one in alone] == [one.ids.tolist() for one in together[row]]
        for one in alone:  # its log-probabilities are those of a pass without a cache
            ids = torch.tensor([[1, *one.ids.tolist()]])
            logits = model(source=SOURCE[row : row + 1, :length], target=ids[:, :-1]).logits
            chances = logits.log_softmax(2).gather(2, ids[:, 1:, None])[0, :, 0]
            torch.testing.assert_close(one.token_log_probabilities, chances, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_state_is_not_cut_back(kind: str, model: Model):
    state = model.start(source=SOURCE)
    model.step(state, TARGET[:, :3])
    with pytest.raises(tfkit.InputError, match=rf"`decoder\.0\.{kind}`.* has only the state after position 3"):
        state.truncate(2)


def test_documents_are_refused_by_the_name_of_the_stack(model: Model):
    documents = {"source": torch.zeros_like(SOURCE), "target": torch.zeros_like(TARGET)}
    with pytest.raises(tfkit.InputError, match=r"`decoder` .* mixes tokens by more than attention"):
        model(source=SOURCE, target=TARGET, documents=documents)


def test_a_stack_that_is_not_causal_is_refused(kind: str, catalogue: tfkit.Catalogue):
    text = SPEC.format(part="self_attention").replace("num_layers: 1}", f"num_layers: 1, sublayers: [{KINDS[kind]}, ffn]}}")
    with pytest.raises(tfkit.SpecError, match=r"encoder.*a token reads only what comes before it"):
        tfkit.graph_of(tfkit.parse_spec(text, catalogue))


def test_it_trains(model: Model):
    """A loss reaches every weight."""
    model.train()
    model(source=SOURCE, target=TARGET[:, :-1], labels=TARGET[:, 1:]).loss.backward()
    assert all(parameter.grad is not None and bool(parameter.grad.abs().sum() > 0) for parameter in model.parameters())


def test_gates_are_optional(catalogue: tfkit.Catalogue, ids_of: Callable[..., Tensor]):
    part = "{kind: average_attention, d_ff: 20, gate: false}"
    model = tfkit.build(tfkit.parse_spec(SPEC.format(part=part), catalogue), catalogue, seed=2, dtype=torch.float64)
    sub = model.nodes["decoder"].layers[0].branches["average_attention"]
    assert {name for name, _ in sub.named_parameters()} == {
        f"ffn.{side}.{what}" for side in ("input", "output") for what in ("weight", "bias")
    }
