"""Span logits: which positions can be chosen, held against plain loops; labels; wrong specs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tfkit
from tfkit.inspection import Padding, SpanLogits
from tfkit.plugin.model_parts import NodeOutput

NODES = """
nodes:
  tokens: {kind: tokens, end_id: 2}
  body:   {kind: stack, input: tokens, num_layers: 1}
  one:    {kind: pool, input: body, take: first}
  answer: {kind: span_logits, input: body, choose: second_text, tokens: tokens}
outputs: [answer, one]
"""
END, PAD = 2, 0
ROWS = [[1, 7, END, 8, 9, END, PAD], [1, END, END, 7, 7, 7, END], [1, 5, 6, 7, 8, PAD, PAD], [PAD, PAD, 1, 5, END, 6, END]]


def choosable(row: list[int]) -> list[int]:
    real = [at for at, token in enumerate(row) if token != PAD]
    ends = [at for at in real if row[at] == END]
    return [real[0], *(at for at in real if ends and at > ends[0] and row[at] != END)]


@pytest.mark.parametrize("end_id", [None, END])
def test_positions_that_can_be_chosen(end_id: int | None) -> None:
    torch.manual_seed(0)
    ids, x = torch.tensor(ROWS), torch.randn(4, 7, 5)
    head = SpanLogits(nn.Linear(5, 2), end_id)
    made = head(None, NodeOutput(x, Padding(visible=ids != PAD)), NodeOutput(x, Padding(), ids)).tensor
    for row, logits, hidden in zip(ROWS, made, x, strict=True):
        chosen = [at for at in range(7) if row[at] != PAD] if end_id is None else choosable(row)
        assert (logits > torch.finfo(logits.dtype).min).all(1).nonzero()[:, 0].tolist() == chosen
        torch.testing.assert_close(logits[chosen], head.linear(hidden[chosen]))
        assert logits.softmax(0)[chosen].sum(0).tolist() == pytest.approx([1, 1])


def test_the_loss_is_that_of_both_ends(model_of) -> None:
    model = model_of(NODES, dtype=torch.float64)
    ids, labels = torch.tensor(ROWS[:2]), torch.tensor([[3, 4], [0, -100]])
    made = model(tokens=ids, lengths={"tokens": torch.tensor([6, 7])}, labels=labels)
    ends = made["answer"].unbind(-1)
    expected = [functional.cross_entropy(logits, end, reduction="sum") for logits, end in zip(ends, labels.mT, strict=True)]
    torch.testing.assert_close(made.loss, torch.stack(expected).sum() / 3)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (torch.tensor([[3], [0]]), {}, r"TFK070 .*have shape \(2, 1\), .*labels are \(2, 2\)"),
        (torch.tensor([[3, 7], [0, 0]]), {}, r"TFK072 .*hold 7"),
        (torch.tensor([[3, 4], [0, 0]]), {"smoothing": 0.1}, r"TFK073 smoothing is 0.1, .*cannot be chosen"),
    ],
)
def test_wrong_labels(labels: Tensor, options: dict[str, float], message: str, model_of) -> None:
    with pytest.raises(tfkit.InputError, match=message):
        model_of(NODES)(tokens=torch.tensor(ROWS[:2]), labels=labels, **options)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("input: body, choose", "input: one, choose", r"`one` is one vector, .*read a sequence"),
        (", tokens: tokens}", "}", r"`choose: second_text` needs the tokens node"),
        ("choose: second_text, ", "", r"`choose: all` reads no token ids"),
        (", end_id: 2", "", r"`tokens` has no end_id"),
        ("choose: second_text", "choose: context", r"choose"),
    ],
)
def test_wrong_specs(old: str, new: str, message: str, model_of) -> None:
    assert old in NODES
    with pytest.raises(tfkit.SpecError, match=message):
        model_of(NODES.replace(old, new))
