"""Weights of torch's recurrent modules, both ways."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tfkit
from tfkit.nn.torch_recurrent import load_torch, to_torch

SPEC = """
tfkit: 1
name: tagger
defaults: {{vocab_size: 19, d_model: 5, pad_id: 0}}
nodes:
  source:  {{kind: tokens}}
  encoder: {{kind: rnn, input: source, d_state: 4, {encoder}}}
outputs: [encoder]
"""
KINDS = [
    ("cell: {kind: gru, reset: after}, num_layers: 2", nn.GRU(5, 4, 2)),
    ("cell: {kind: gru, reset: after}, bidirectional: true", nn.GRU(5, 4, bidirectional=True)),
    ("cell: {kind: gru, reset: after, bias: false}", nn.GRU(5, 4, bias=False)),
    ("cell: lstm, num_layers: 3, bidirectional: true", nn.LSTM(5, 4, 3, bidirectional=True)),
    ("cell: rnn_tanh", nn.RNN(5, 4)),
    ("cell: rnn_relu", nn.RNN(5, 4, nonlinearity="relu")),
]


def model(encoder: str) -> tfkit.Model:
    return tfkit.build(tfkit.parse_spec(SPEC.format(encoder=encoder)), seed=1).eval()


@pytest.mark.parametrize(("encoder", "theirs"), KINDS)
def test_a_node_with_the_weights_of_torchs_module_is_that_module(encoder, theirs):
    built = model(encoder)
    load_torch(built.nodes["encoder"], theirs)
    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])
    found = built(source=ids)["encoder"]
    expected, _ = theirs(built.nodes["source"].embedding(ids).transpose(0, 1))
    torch.testing.assert_close(found, expected.transpose(0, 1), rtol=1e-6, atol=1e-6)
    back = to_torch(built.nodes["encoder"])
    assert type(back) is type(theirs)
    assert all(torch.equal(own, other) for own, other in zip(back.parameters(), theirs.parameters(), strict=True))


def test_layer_n_is_the_output_of_torchs_module_with_n_layers_before_dropout():
    theirs = nn.LSTM(5, 4, 3, bidirectional=True, dtype=torch.float64)
    text = SPEC.format(encoder="cell: lstm, num_layers: 3, bidirectional: true, dropout: 0.5")
    built = tfkit.build(tfkit.parse_spec(text.replace("[encoder]", "[encoder, encoder.layers]")), dtype=torch.float64).eval()
    load_torch(built.nodes["encoder"], theirs)
    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])
    outputs = built(source=ids)
    assert outputs["encoder.layers"].shape == (3, 2, 4, 8)
    assert torch.equal(outputs["encoder.layers"][-1], outputs.encoder)
    for depth in (1, 2, 3):
        shorter = nn.LSTM(5, 4, depth, bidirectional=True, dtype=torch.float64)
        shorter.load_state_dict({name: weight for name, weight in theirs.state_dict().items() if name in shorter.state_dict()})
        expected, _ = shorter(built.nodes["source"].embedding(ids).transpose(0, 1))
        torch.testing.assert_close(outputs["encoder.layers"][depth - 1], expected.transpose(0, 1), rtol=0, atol=1e-12)
    trained = built.train()(source=ids)
    assert torch.equal(trained["encoder.layers"][0], outputs["encoder.layers"][0])  # no dropout is below it
    assert not trained["encoder.layers"].eq(0).any()
    assert trained.encoder.eq(0).any()


@pytest.mark.parametrize("other", [nn.GRU(5, 3), nn.LSTM(5, 4), nn.GRU(5, 4, 2), nn.GRU(5, 4, bias=False)])
def test_a_module_that_does_not_fit_is_refused_and_changes_nothing(other):
    built = model("cell: {kind: gru, reset: after}")
    before = {name: parameter.clone() for name, parameter in built.named_parameters()}
    with pytest.raises(tfkit.InputError, match=r"does not fit a node like GRU\(5, 4, 1\)"):
        load_torch(built.nodes["encoder"], other)
    assert all(torch.equal(before[name], parameter) for name, parameter in built.named_parameters())


def test_the_papers_gru_is_not_torchs():
    with pytest.raises(tfkit.InputError, match="`gru` with `reset: after`"):
        to_torch(model("cell: gru").nodes["encoder"])
