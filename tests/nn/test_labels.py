"""`labels=`: which logits they are held against, what does not count, and the formula; and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import tfkit
from tfkit import Model

CLASSIFIER = """
nodes:
  tokens: {kind: tokens}
  body:   {kind: stack, input: tokens, num_layers: 1}
  one:    {kind: pool, input: body, take: first}
  label:  {kind: classify, input: one, classes: 4}
outputs: [label]
"""
TAGGER = """
nodes:
  tokens: {kind: tokens}
  body:   {kind: stack, input: tokens, num_layers: 1}
  tags:   {kind: classify, input: body, classes: 4}
outputs: [tags, body]
"""
MASKED = """
nodes:
  tokens: {kind: tokens}
  body:   {kind: stack, input: tokens, num_layers: 1}
  words:  {kind: token_logits, input: body, share: tokens}
  one:    {kind: pool, input: body, take: first}
  next:   {kind: classify, input: one, classes: 2}
outputs: [words, next]
"""
NOTHING = """
nodes:
  tokens: {kind: tokens}
  body:   {kind: stack, input: tokens, num_layers: 1}
outputs: [body]
"""
IDS = torch.randint(3, 19, (3, 7), generator=torch.Generator().manual_seed(1))
SAID = torch.randint(3, 19, (3, 5), generator=torch.Generator().manual_seed(2))


def entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    flat = logits.reshape(-1, logits.shape[-1])
    return functional.cross_entropy(flat, labels.reshape(-1), ignore_index=-100, label_smoothing=smoothing)


def by_hand(logits: Tensor, labels: Tensor, smoothing: float) -> float:
    """The documented formula, in Python."""
    losses = []
    for place in itertools.product(*map(range, labels.shape)):
        label, row = int(labels[place]), logits[place].tolist()
        if label != -100:
            total = torch.tensor(row).double().logsumexp(0).item()
            nll = [total - value for value in row]
            losses.append((1 - smoothing) * nll[label] + smoothing / len(row) * sum(nll))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_the_loss_is_the_documented_formula(smoothing: float, model_of: Callable[..., Model]) -> None:
    model = model_of("encoder-decoder", dtype=torch.float64)
    labels = SAID.clone()
    labels[1, 2:] = -100
    outputs = model(source=IDS, target=SAID, labels=labels, smoothing=smoothing)
    assert torch.equal(outputs.loss, entropy(outputs.logits, labels, smoothing))
    assert outputs.loss.item() == pytest.approx(by_hand(outputs.logits, labels, smoothing))
    assert torch.equal(outputs.logits, model(source=IDS, target=SAID).logits)


def test_the_target_is_the_labels_behind_a_start_token(model_of: Callable[..., Model]) -> None:
    model = model_of()
    labels = torch.cat([SAID, torch.full((3, 1), 2)], 1)
    labels[1, 3], labels[1, 4:] = 2, -100
    target = torch.tensor([[1], [1], [1]])
    target = torch.cat([target, labels[:, :-1].where(labels[:, :-1] != -100, torch.tensor(0))], 1)
    made, given = model(source=IDS, labels=labels), model(source=IDS, target=target, labels=labels)
    assert torch.equal(made.logits, given.logits)
    assert torch.equal(made.loss, given.loss)
    assert torch.equal(made.loss, entropy(given.logits, labels))


def test_a_decoder_predicts_the_next_label(model_of: Callable[..., Model]) -> None:
    model = model_of("decoder")
    outputs = model(tokens=IDS, labels=IDS)
    assert torch.equal(outputs.loss, entropy(outputs.logits[:, :-1], IDS[:, 1:]))


def test_tokens_and_classes_stand_where_they_are(model_of: Callable[..., Model]) -> None:
    words, after = IDS.where(IDS % 2 == 0, -100), torch.tensor([0, 1, 0])
    model = model_of(MASKED)
    outputs = model(tokens=IDS, labels={"words": words})
    assert torch.equal(outputs.loss, entropy(outputs.words, words))
    outputs = model(tokens=IDS, labels={"words": words, "next": after})
    assert torch.equal(outputs.loss, entropy(outputs.words, words) + entropy(outputs.next, after))
    outputs = (model := model_of(CLASSIFIER))(tokens=IDS, labels=torch.tensor([0, 3, 1]))
    assert torch.equal(outputs.loss, entropy(outputs.label, torch.tensor([0, 3, 1])))
    outputs = (model := model_of(TAGGER))(tokens=IDS, labels=IDS % 4)  # class 0 is a class, though `pad_id` is 0
    assert torch.equal(outputs.loss, entropy(outputs.tags, IDS % 4))


def test_padding_does_not_count_and_an_end_token_does(model_of: Callable[..., Model]) -> None:
    labels = SAID.clone()
    labels[0, 3:] = 0
    model = model_of()
    assert torch.equal(
        model(source=IDS, target=SAID, labels=labels).loss,
        model(source=IDS, target=SAID, labels=labels.where(labels != 0, -100)).loss,
    )
    alike = model_of("encoder-decoder", "target.end_id=0")
    outputs = alike(source=IDS, target=SAID, labels=labels)
    assert torch.equal(outputs.loss, entropy(outputs.logits, labels))


def test_half_precision_losses_are_computed_in_float32(model_of: Callable[..., Model]) -> None:
    model = model_of("decoder", dtype=torch.bfloat16)
    outputs = model(tokens=IDS, labels=IDS.int())
    assert outputs.loss.dtype == torch.float32
    assert torch.equal(outputs.loss, entropy(outputs.logits[:, :-1].float(), IDS[:, 1:]))


@pytest.mark.slow
def test_a_loss_compiles_and_exports(model_of: Callable[..., Model], rounding: Callable[..., float]) -> None:
    model = model_of("encoder-decoder", "encoder.num_layers=1", "decoder.num_layers=1")
    torch._dynamo.reset()
    want = model(source=IDS, labels=SAID, smoothing=0.1)
    got = torch.compile(model, fullgraph=True, backend="aot_eager")(source=IDS, labels=SAID, smoothing=0.1)
    bound = rounding(model, want.logits.detach(), 7)
    assert abs(float((got.loss - want.loss).detach())) <= bound
    got.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    program = torch.export.export(model, (), kwargs={"source": IDS, "labels": SAID}, strict=False)
    want = model(source=IDS, labels=SAID)
    assert abs(float((program.module()(source=IDS, labels=SAID).loss - want.loss).detach())) <= bound


CASES: dict[str, tuple[tuple[str, ...], dict[str, Any], str, str]] = {
    "shape": (("decoder",), {"labels": IDS[:, :3]}, "TFK070", r"labels of `logits` have shape \(3, 3\).*labels are \(3, 7\)"),
    "dtype": (("decoder",), {"labels": IDS.float()}, "TFK071", "labels of `logits` have dtype torch.float32"),
    "a list": (("decoder",), {"labels": [[1]]}, "TFK071", "labels of `logits` is a list"),
    "all ignored": (("decoder",), {"labels": IDS * 0 - 100}, "TFK073", "all labels of `logits` are ignored"),
    "too large": (("decoder",), {"labels": IDS + 16}, "TFK072", r"labels of `logits` hold \d+, but its logits are 19.*-100"),
    "negative": (("decoder",), {"labels": IDS - 90}, "TFK072", "labels of `logits` hold -"),
    "unknown output": (("decoder",), {"labels": {"logit": IDS}}, "TFK073", "labels name `logit`.*logits"),
    "two outputs": ((MASKED,), {"labels": IDS}, "TFK073", "give labels by output: words, next"),
    "no logits": ((NOTHING,), {"labels": IDS}, "TFK073", "end the model in `token_logits`, `classify` or `span_logits`"),
    "smoothing": (("decoder",), {"labels": IDS, "smoothing": 1.5}, "TFK073", "smoothing is 1.5; it is a number from 0 to 1"),
}


@pytest.mark.parametrize("name", CASES)
def test_labels_that_are_refused(name: str, model_of: Callable[..., Model]) -> None:
    shape, arguments, code, pattern = CASES[name]
    with pytest.raises(tfkit.InputError, match=pattern) as error:
        model_of(*shape)(tokens=IDS, **arguments)
    assert [diagnostic.code for diagnostic in error.value.diagnostics] == [code]


@pytest.mark.parametrize("wrong", [19, -3])
def test_a_label_that_becomes_a_target_is_called_a_label(wrong: int, model_of: Callable[..., Model]) -> None:
    labels = SAID.clone()
    labels[1, 2] = wrong
    with pytest.raises(tfkit.InputError, match=f"TFK072 the labels of `logits` hold {wrong}"):
        model_of("encoder-decoder")(source=IDS, labels=labels)


def test_a_missing_target_needs_a_start_token(model_of: Callable[..., Model]) -> None:
    with pytest.raises(tfkit.InputError, match="`target` is not given, and without a start_id"):
        model_of("encoder-decoder", "target.start_id=null")(source=IDS, labels=SAID)


@pytest.mark.parametrize(("name", "old"), [("labels", "source"), ("smoothing", "source"), ("loss", "head")])
def test_names_of_call_arguments_are_reserved(name: str, old: str, spec_of: Callable[..., tfkit.ModelSpec]) -> None:
    nodes = MASKED
    for word, new in [
        ("tokens:", "source:"),
        (": tokens,", ": source,"),
        ("share: tokens", "share: source"),
        ("words", "head"),
    ]:
        nodes = nodes.replace(word, new)
    nodes = nodes.replace("kind: source", "kind: tokens")
    with pytest.raises(tfkit.SpecError, match=rf"TFK013.*`{name}` is"):
        tfkit.graph_of(spec_of(nodes.replace(old, name)))
