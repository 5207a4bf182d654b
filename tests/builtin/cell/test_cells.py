"""The built-in cells are their equations, and those that torch has are torch's."""

from __future__ import annotations

from functools import partial
from math import exp, tanh

import pytest
import torch
from torch import Tensor, nn

from tfkit.builtin.cell.entries import ENTRIES
from tfkit.nn.recurrent_layer import RecurrentLayer
from tfkit.plugin import CellSite
from tfkit.plugin.model_parts import load

BY_NAME = {entry.name: entry for entry in ENTRIES}
CASES = [
    ("rnn_tanh", {}), ("rnn_relu", {}), ("gru", {"reset": "before"}), ("gru", {"reset": "after"}), ("gru_cho", {}), ("lstm", {})
]  # fmt: skip
TORCH = [
    ("rnn_tanh", {}, nn.RNN),
    ("rnn_relu", {}, partial(nn.RNN, nonlinearity="relu")),
    ("gru", {"reset": "after"}, nn.GRU),
    ("lstm", {}, nn.LSTM),
]


def built(name: str, site: CellSite, **options: object) -> nn.Module:
    torch.manual_seed(0)
    cell = load(BY_NAME[name].build)(BY_NAME[name].options(**options), site).double()
    for parameter in cell.parameters():
        nn.init.uniform_(parameter, -0.7, 0.7)
    return cell


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def row(weight: Tensor, i: int, x: list[float]) -> float:
    return sum(w * value for w, value in zip(weight[i].tolist(), x, strict=True))


def step_by_hand(name: str, options: dict[str, object], cell: nn.Module, inputs: list[list[float]], state: list[list[float]]):
    """One step for one row of a batch, number by number."""
    h, N = state[0], len(state[0])

    def of_input(i: int) -> float:
        return sum(row(weight, i, x) for weight, x in zip(cell.weights_ih, inputs, strict=True)) + cell.bias_ih[i].item()

    def of_state(i: int, h: list[float] = h) -> float:
        return row(cell.weight_hh, i, h) + (cell.bias_hh[i].item() if hasattr(cell, "bias_hh") else 0.0)

    if name == "rnn_tanh":
        return [[tanh(of_input(i) + of_state(i)) for i in range(N)]]
    if name == "rnn_relu":
        return [[max(0.0, of_input(i) + of_state(i)) for i in range(N)]]
    if name == "gru_cho":
        token = [row(cell.weights_ih[0], i, inputs[0]) + cell.bias_ih[i].item() for i in range(3 * N)]
        context = [row(cell.weights_ih[1], i, inputs[1]) for i in range(3 * N)] if len(inputs) > 1 else [0.0] * 3 * N
        r, z = ([sigmoid(token[at + i] + context[at + i] + of_state(at + i)) for i in range(N)] for at in (0, N))
        n = [tanh(token[2 * N + i] + r[i] * (of_state(2 * N + i) + context[2 * N + i])) for i in range(N)]
        return [[z[i] * h[i] + (1 - z[i]) * n[i] for i in range(N)]]
    if name == "lstm":
        gates = [of_input(i) + of_state(i) for i in range(4 * N)]
        c = [sigmoid(gates[N + i]) * state[1][i] + sigmoid(gates[i]) * tanh(gates[2 * N + i]) for i in range(N)]
        return [[sigmoid(gates[3 * N + i]) * tanh(c[i]) for i in range(N)], c]
    r = [sigmoid(of_input(i) + of_state(i)) for i in range(N)]
    z = [sigmoid(of_input(N + i) + of_state(N + i)) for i in range(N)]
    if options["reset"] == "before":
        reset = [r[i] * h[i] for i in range(N)]
        n = [tanh(of_input(2 * N + i) + row(cell.weight_hn, i, reset)) for i in range(N)]
        return [[(1 - z[i]) * h[i] + z[i] * n[i] for i in range(N)]]
    n = [tanh(of_input(2 * N + i) + r[i] * of_state(2 * N + i)) for i in range(N)]
    return [[z[i] * h[i] + (1 - z[i]) * n[i] for i in range(N)]]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_step_is_the_equation(name, options):
    cell = built(name, CellSite((3, 2), 4), **options)
    x, context = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    state = tuple(torch.randn(5, 4, dtype=torch.float64) for _ in range(BY_NAME[name].states))
    found = cell.step(cell.project(x, 0) + cell.project(context, 1), state)
    for b in range(5):
        expected = step_by_hand(name, options, cell, [x[b].tolist(), context[b].tolist()], [s[b].tolist() for s in state])
        for tensor, values in zip(found, expected, strict=True):
            torch.testing.assert_close(tensor[b], torch.tensor(values, dtype=torch.float64), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_declared_parameters_are_those_of_the_module(name, options):
    entry = BY_NAME[name]
    for bias in (True, False):
        for site in (CellSite((3,), 4), CellSite((3, 5), 4)):
            chosen = entry.options(**options, bias=bias)
            module = load(entry.build)(chosen, site)
            declared = {parameter.name: parameter.shape for parameter in entry.parameters(chosen, site)}
            assert declared == {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
            assert sum(p.numel() for p in module.parameters() if p.dim() > 1) == entry.gates * 4 * (site.width + 4)


def layer_like(theirs: nn.Module, name: str, options: dict[str, object]) -> RecurrentLayer:
    """A layer with the weights of one of torch's."""
    cells = []
    for side in ("", "_reverse") if theirs.bidirectional else ("",):
        cell = built(name, CellSite((theirs.input_size,), theirs.hidden_size), **options)
        weights = [getattr(theirs, f"{kind}_l0{side}") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        with torch.no_grad():
            for own, weight in zip(cell.flat_weights(), weights, strict=True):
                own.copy_(weight)
        cells.append(cell)
    return RecurrentLayer(cells[0], cells[1] if len(cells) > 1 else None)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("name", "options", "kind"), TORCH)
def test_a_layer_is_torchs_with_its_weights(name, options, kind, padded, bidirectional):
    torch.manual_seed(1)
    theirs = kind(3, 4, batch_first=True, bidirectional=bidirectional).double()
    layer = layer_like(theirs, name, options)
    x = torch.randn(3, 6, 3, dtype=torch.float64)
    lengths = torch.tensor([6, 2, 4]) if padded else None
    visible = torch.arange(6) < lengths[:, None] if padded else None
    first = tuple(torch.randn(3, 4, dtype=torch.float64) for _ in range(BY_NAME[name].states))
    both = tuple(torch.stack([tensor] + [torch.zeros_like(tensor)] * bidirectional) for tensor in first)
    their_first = both if len(both) > 1 else both[0]
    if padded:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        packed, their_last = theirs(packed, their_first)
        expected, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    else:
        expected, their_last = theirs(x, their_first)
    their_last = their_last if isinstance(their_last, tuple) else (their_last,)
    for by_torch in (True, False):
        layer.by_torch = by_torch
        outputs, last = layer.read([x], first, visible, lengths)
        if padded:
            outputs = outputs.masked_fill(~visible[:, :, None], 0.0)
        torch.testing.assert_close(outputs, expected, rtol=1e-13, atol=1e-13)
        for own, other in zip(last, their_last, strict=True):
            torch.testing.assert_close(own, other[0], rtol=1e-13, atol=1e-13)


def test_only_torchs_equations_run_in_one_call_of_torch():
    by_torch = {
        (name, *options.values()): RecurrentLayer(built(name, CellSite((3,), 4), **options), None).by_torch
        for name, options in CASES
    }
    assert by_torch == {
        ("rnn_tanh",): True, ("rnn_relu",): True, ("gru", "before"): False, ("gru", "after"): True, ("gru_cho",): False,
        ("lstm",): True,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "options"), CASES)
def test_reading_around_padding_is_reading_the_tokens_alone(name, options):
    """Padding may stand anywhere: the state stays what it was."""
    cell = built(name, CellSite((3,), 4), **options)
    layer = RecurrentLayer(cell, built(name, CellSite((3,), 4), **options))
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    visible = torch.tensor([[False, True, False, True, True, False], [True, True, True, True, True, True]])
    first = tuple(torch.randn(2, 4, dtype=torch.float64) for _ in range(BY_NAME[name].states))
    outputs, last = layer.read([x], first, visible, None)
    alone, alone_last = layer.read([x[:1, visible[0]]], tuple(tensor[:1] for tensor in first), None, None)
    torch.testing.assert_close(outputs[0, visible[0]], alone[0], rtol=1e-13, atol=1e-13)
    for own, other in zip(last, alone_last, strict=True):
        torch.testing.assert_close(own[:1], other, rtol=1e-13, atol=1e-13)
