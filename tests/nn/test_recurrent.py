"""Recurrent encoders and decoders against their papers' equations, written as loops over single rows and tokens in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import Model

SPEC = """
tfkit: 1
name: small-rnn
defaults: {{vocab_size: 19, d_model: 5, pad_id: 0}}
nodes:
  source:  {{kind: tokens}}
  target:  {{kind: tokens, start_id: 1, end_id: 2}}
  encoder: {{kind: rnn, input: source, {encoder}}}
  {between}
  decoder: {{kind: rnn, input: target, {decoder}}}
  logits:  {{kind: token_logits, input: decoder}}
outputs: [logits, encoder.layers, decoder.layers]
"""
BIDIRECTIONAL = "cell: gru, d_state: 4, bidirectional: true"
LSTM = "cell: lstm, d_state: 4, num_layers: 2"
CHO = (
    "cell: gru, d_state: 4",
    "memory: context, cell: gru, d_state: 4, initial_state: {take: last}, readout: {kind: maxout, d_model: 3}",
    "context: {kind: pool, input: encoder, take: last}",
)
BAHDANAU = (
    BIDIRECTIONAL,
    "memory: encoder, cell: gru, d_state: 4, cross_attention: {score: {kind: additive, d_score: 6}}, "
    "initial_state: {take: first_backward}, readout: {kind: maxout, d_model: 3, state: previous}",
    "",
)
CONDITIONAL = (
    BIDIRECTIONAL,
    "memory: encoder, cell: gru, d_state: 4, cross_attention: {attend: between_cells, score: concat}, "
    "initial_state: {take: mean}, readout: {kind: tanh, d_model: 3}",
    "",
)
FEEDING = (
    LSTM,
    "memory: encoder, cell: lstm, d_state: 4, num_layers: 2, initial_state: {take: states}, "
    "cross_attention: {attend: after_cell, input_feeding: true, score: general}, "
    "readout: {kind: tanh, d_model: 3, reads: [state, context], bias: false}",
    "",
)
LUONG = (LSTM, FEEDING[1].replace("input_feeding: true, score: general", "score: dot"), "")
LOCAL = (LSTM, LUONG[1].replace("score: dot", "score: general, local: {half_width: 2}"), "")
LOCAL_FEEDING = (LSTM, FEEDING[1].replace("score: general", "score: concat, local: {half_width: 2}"), "")
DEEP = (BIDIRECTIONAL, BAHDANAU[1].replace("cell: gru", "cell: gru, num_layers: 3"), "")
SEQUENCE_TO_SEQUENCE = ("cell: gru, d_state: 4", "memory: encoder, cell: gru, d_state: 4, initial_state: {take: last}", "")
KINDS = {
    "cho": CHO, "bahdanau": BAHDANAU, "conditional": CONDITIONAL, "feeding": FEEDING, "luong": LUONG,
    "local": LOCAL, "local feeding": LOCAL_FEEDING, "deep": DEEP,
    "sequence to sequence": SEQUENCE_TO_SEQUENCE,
}  # fmt: skip
LSTMS = ("feeding", "luong", "local", "local feeding")
SOURCE = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 10, 11, 0, 0, 0], [12, 13, 14, 15, 0, 0]])
TARGET = torch.tensor([[1, 4, 6, 8, 10], [1, 3, 5, 7, 9], [1, 18, 17, 16, 15]])


@pytest.fixture(scope="module")
def rnn(catalogue: tfkit.Catalogue) -> Callable[[str], Model]:
    def build(kind: str) -> Model:
        encoder, decoder, between = KINDS[kind]
        text = SPEC.format(encoder=encoder, decoder=decoder, between=between)
        model = tfkit.build(tfkit.parse_spec(text, catalogue), seed=0, dtype=torch.float64).eval()
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():  # biases and scores start at zero, which would hide them
            for parameter in model.parameters():
                parameter.uniform_(-0.8, 0.8, generator=generator)
        return model

    return build


Weights = dict[str, Tensor]


def cell(weights: Weights, prefix: str, inputs: list[Tensor], state: list[Tensor]) -> list[Tensor]:
    """One step of the papers' GRU or of LSTM for one row."""
    h = state[0]
    x = sum(weights[f"{prefix}.weights_ih.{i}"] @ each for i, each in enumerate(inputs)) + weights[f"{prefix}.bias_ih"]
    if len(state) == 1:
        x_r, x_z, x_n = x.chunk(3)
        u_r, u_z = weights[f"{prefix}.weight_hh"].chunk(2)
        r, z = torch.sigmoid(x_r + u_r @ h), torch.sigmoid(x_z + u_z @ h)
        return [(1 - z) * h + z * torch.tanh(x_n + weights[f"{prefix}.weight_hn"] @ (r * h))]
    i, f, new, o = (x + weights[f"{prefix}.weight_hh"] @ h + weights[f"{prefix}.bias_hh"]).chunk(4)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(new)
    return [torch.sigmoid(o) * torch.tanh(c), c]


def encode(weights: Weights, tokens: Tensor, layers: int, states: int, both: bool) -> tuple[Tensor, list[list[Tensor]]]:
    """What every layer gives for one row without padding, and the last states of every layer."""
    x, last, outputs_of = [weights["nodes.source.embedding.weight"][token] for token in tokens], [], []
    for layer in range(layers):
        sides = []
        for name in ("cell", "backward_cell") if both else ("cell",):
            state, outputs = [torch.zeros(4, dtype=torch.float64)] * states, []
            for each in x if name == "cell" else reversed(x):
                state = cell(weights, f"nodes.encoder.layers.{layer}.{name}", [each], state)
                outputs.append(state[0])
            sides.append(outputs if name == "cell" else outputs[::-1])
            last.append(state)
        x = [torch.cat(parts) for parts in zip(*sides, strict=True)]
        outputs_of.append(torch.stack(x))
    return torch.stack(outputs_of), last


def context_of(weights: Weights, kind: str, query: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """The context of one state, and the attention weights."""
    name = "nodes.decoder.cross_attention.score."
    scores = []
    for key in memory:
        if kind == "luong":
            scores.append(query @ key)
        elif kind in ("feeding", "local"):
            scores.append(query @ (weights[name + "weight"] @ key))
        elif kind in ("conditional", "local feeding"):
            scores.append(weights[name + "out.weight"][0] @ torch.tanh(weights[name + "weight"] @ torch.cat([query, key])))
        else:
            inner = weights[name + "query.weight"] @ query + weights[name + "key.weight"] @ key
            scores.append(weights[name + "out.weight"][0] @ torch.tanh(inner))
    shares = local_shares(weights, query, scores) if kind.startswith("local") else torch.stack(scores).softmax(0)
    return shares @ memory, shares


def local_shares(weights: Weights, query: Tensor, scores: list[Tensor]) -> Tensor:
    """The weights of local-p with D = 2: a softmax inside the window, times a Gaussian with sigma = 1."""
    name = "nodes.decoder.cross_attention.local."
    hidden = torch.tanh(weights[name + "query.weight"] @ query)
    centre = len(scores) * torch.sigmoid(weights[name + "out.weight"][0] @ hidden)
    inside = [s for s in range(1, len(scores) + 1) if abs(s - centre.item()) <= 2.0]
    total = sum(scores[s - 1].exp() for s in inside)
    zero = torch.zeros((), dtype=torch.float64)
    return torch.stack(
        [scores[s - 1].exp() / total * torch.exp(-((s - centre) ** 2) / 2) if s in inside else zero
         for s in range(1, len(scores) + 1)]
    )  # fmt: skip


def decode(kind: str, weights: Weights, source: Tensor, target: Tensor) -> dict[str, Any]:
    """The logits of one row, the attention weights of every step, and what every layer gives."""
    lstm, both = kind in LSTMS, kind in ("bahdanau", "conditional", "deep")
    read, last = encode(weights, source, 2 if lstm else 1, 2 if lstm else 1, both)
    memory = read[-1]
    depth = 3 if kind == "deep" else 2 if lstm else 1
    if lstm:
        states = last
    else:
        taken = {"bahdanau": memory[0, 4:], "deep": memory[0, 4:], "conditional": memory.mean(0)}.get(kind, memory[-1])
        first = torch.tanh(
            weights["nodes.decoder.initial.linear.weight"] @ taken + weights["nodes.decoder.initial.linear.bias"]
        )
        states = [[part] for part in first.chunk(depth)]
    fed = torch.zeros(3, dtype=torch.float64)
    logits, shares, layers = [], [], []
    for token in target:
        y = weights["nodes.target.embedding.weight"][token]
        before, context, lowest = states[-1][0], None, 0
        if kind == "cho":
            context = memory[-1]
            states = [cell(weights, "nodes.decoder.layers.0.cell", [y, context], states[0])]
        elif kind in ("bahdanau", "deep"):
            context, share = context_of(weights, kind, states[0][0], memory)
            states = [cell(weights, "nodes.decoder.layers.0.cell", [y, context], states[0]), *states[1:]]
            lowest, shares = 1, [*shares, share]
        elif kind == "conditional":
            middle = cell(weights, "nodes.decoder.layers.0.cell", [y], states[0])
            context, share = context_of(weights, kind, middle[0], memory)
            states, shares = [cell(weights, "nodes.decoder.context_cell", [context], middle)], [*shares, share]
        elif kind == "sequence to sequence":
            states = [cell(weights, "nodes.decoder.layers.0.cell", [y], states[0])]
        for layer in range(lowest, depth) if kind == "deep" or lstm else ():
            below = y if layer == 0 else states[layer - 1][0]
            inputs = [below, fed] if "feeding" in kind and layer == 0 else [below]
            states = [
                *states[:layer],
                cell(weights, f"nodes.decoder.layers.{layer}.cell", inputs, states[layer]),
                *states[layer + 1 :],
            ]
        if lstm:
            context, share = context_of(weights, kind, states[-1][0], memory)
            shares.append(share)
        layers.append(torch.stack([state[0] for state in states]))
        logits.append(weights["nodes.logits.logits.weight"] @ read_out(kind, weights, before, states[-1][0], y, context))
        fed = read_out(kind, weights, before, states[-1][0], y, context) if "feeding" in kind else fed
    return {"logits": torch.stack(logits), "shares": shares, "encoder": read, "decoder": torch.stack(layers, 1)}


def read_out(kind: str, weights: Weights, before: Tensor, after: Tensor, y: Tensor, context: Tensor | None) -> Tensor:
    if kind == "sequence to sequence":
        return after
    assert context is not None
    if kind in LSTMS:
        return torch.tanh(weights["nodes.decoder.readout.linear.weight"] @ torch.cat([after, context]))
    state = before if kind in ("bahdanau", "deep") else after
    t = weights["nodes.decoder.readout.linear.weight"] @ torch.cat([state, y, context])
    t = t + weights["nodes.decoder.readout.linear.bias"]
    if kind == "conditional":
        return torch.tanh(t)
    return torch.stack([torch.maximum(t[2 * j], t[2 * j + 1]) for j in range(3)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_is_the_papers_equations(kind, rnn):
    model = rnn(kind)
    weights = dict(model.named_parameters())
    sites = list(model.sites)
    outputs = model(source=SOURCE, target=TARGET, weights=sites)
    for b, length in enumerate((6, 3, 4)):
        expected = decode(kind, weights, SOURCE[b, :length], TARGET[b])
        torch.testing.assert_close(outputs.logits[b], expected["logits"], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(outputs["encoder.layers"][:, b, :length], expected["encoder"], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(outputs["decoder.layers"][:, b], expected["decoder"], rtol=1e-12, atol=1e-12)
        assert not outputs["encoder.layers"][:, b, length:].any()
        for site in sites:
            torch.testing.assert_close(
                outputs.weights[site][b, 0, :, :length], torch.stack(expected["shares"]), rtol=1e-12, atol=1e-12
            )
            assert not outputs.weights[site][b, 0, :, length:].any()


@pytest.mark.parametrize("chunks", [(1, 1, 1, 1, 1), (3, 1, 1), (1, 4)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_equal_one_pass(kind, chunks, rnn):
    model = rnn(kind)
    whole = model(source=SOURCE, target=TARGET)
    state, pieces, start = model.start(source=SOURCE), [], 0
    for length in chunks:
        pieces.append(model.step(state, TARGET[:, start : start + length], True))
        start += length
    for name, axis in (("logits", 1), ("decoder.layers", 2)):
        found = torch.cat([piece[name] for piece in pieces], axis)
        torch.testing.assert_close(found, whole[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_reordered_rows_go_on_from_their_own_states(kind, rnn):
    model = rnn(kind)
    rows = torch.tensor([2, 0, 2, 1])
    state = model.start(source=SOURCE)
    model.step(state, TARGET[:, :2], True)
    state.reorder(rows)
    found = model.step(state, TARGET[rows][:, 2:], True)["logits"]
    expected = model(source=SOURCE[rows], target=TARGET[rows])["logits"][:, 2:]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_fails_leaves_no_trace(kind, rnn):
    model = rnn(kind)
    expected = model(source=SOURCE, target=TARGET)["logits"]
    state = model.start(source=SOURCE)
    model.step(state, TARGET[:, :2], True)

    def stop(*_: Any) -> None:
        raise RuntimeError

    handle = model.nodes["logits"].register_forward_hook(stop)
    with pytest.raises(RuntimeError):
        model.step(state, TARGET[:, :3], True)
    handle.remove()
    found = model.step(state, TARGET[:, 2:], True)["logits"]
    torch.testing.assert_close(found, expected[:, 2:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_more_padding_changes_no_bit_of_an_encoder(kind, rnn):
    model = rnn(kind)
    found = []
    model.nodes["encoder"].register_forward_hook(lambda module, inputs, output: found.append(output))
    for extra in (0, 1, 7):
        model(source=torch.nn.functional.pad(SOURCE, (0, extra)), target=TARGET)
    for wider in found[1:]:
        assert torch.equal(wider.tensor[:, :6], found[0].tensor)
        assert not wider.tensor[:, 6:].any()
        assert all(torch.equal(own, other) for own, other in zip(wider.states, found[0].states, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_by_mask_lengths_or_ids_is_the_same(kind, rnn):
    model = rnn(kind)
    other = SOURCE.clone()
    other[1, 3:], other[2, 4:] = 7, 8
    by_ids = model(source=SOURCE, target=TARGET)["logits"]
    by_lengths = model(source=other, target=TARGET, lengths={"source": torch.tensor([6, 3, 4])})["logits"]
    by_mask = model(source=other, target=TARGET, masks={"source": SOURCE.ne(0)})["logits"]
    assert torch.equal(by_ids, by_lengths)
    assert torch.equal(by_ids, by_mask)
    left = torch.stack([row.roll(int(row.eq(0).sum())) for row in SOURCE])
    from_left = model(source=left, target=TARGET)["logits"]
    torch.testing.assert_close(from_left, by_ids, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_hypotheses_of_a_beam_search_have_the_probabilities_of_one_pass(kind, rnn):
    """States follow their hypotheses through every reordering, whether the hypotheses share the memory or not."""
    model = rnn(kind)
    for row, hypotheses in enumerate(tfkit.beam_search(model, source=SOURCE, beams=4, n_best=4, max_new_tokens=5)):
        assert len(hypotheses) == 4
        for each in hypotheses:
            ids = torch.cat([torch.tensor([1]), torch.as_tensor(each.ids)])[None]
            alone = SOURCE[row : row + 1, : int(SOURCE[row].ne(0).sum())]
            real = {"target": torch.ones(1, ids.shape[1] - 1, dtype=torch.bool)}  # a generated id 0 is no padding
            logits = model(source=alone, target=ids[:, :-1], masks=real)["logits"].detach().log_softmax(-1)
            total = sum(float(logits[0, i, ids[0, i + 1]]) for i in range(ids.shape[1] - 1))
            assert each.log_probability == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_differences(kind, rnn):
    model = rnn(kind)
    names = [name for name, _ in model.named_parameters()]
    chosen = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]

    def loss(*values: Tensor) -> Tensor:
        tensors = dict(zip(names, values, strict=True))
        return (
            torch.func.functional_call(model, tensors, (), {"source": SOURCE[:, :4], "target": TARGET[:, :3]})["logits"]
            .sin()
            .sum()
        )

    torch.autograd.gradcheck(loss, chosen, fast_mode=True, rtol=1e-6, atol=1e-6)


def test_attention_that_feeds_nothing_is_one_call_for_all_steps(rnn):
    calls: list[tuple[int, ...]] = []
    for kind in ("luong", "bahdanau"):
        model = rnn(kind)
        model.nodes["decoder"].cross_attention.register_forward_hook(
            lambda module, inputs, output: calls.append(tuple(inputs[0].shape))
        )
        model(source=SOURCE, target=TARGET)
    assert calls == [(3, 5, 4)] + [(3, 1, 4)] * 5


def test_keys_of_the_memory_are_mapped_once(rnn):
    model = rnn("bahdanau")
    mapped: list[int] = []
    model.nodes["decoder"].cross_attention.score.key.register_forward_hook(lambda *_: mapped.append(1))
    model(source=SOURCE, target=TARGET)
    assert len(mapped) == 1
    state = model.start(source=SOURCE)
    for t in range(5):
        model.step(state, TARGET[:, t : t + 1], True)
    assert len(mapped) == 2


# torch warns of its own code while it exports `scan`.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("kind", [*(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("cho", "bahdanau")), "luong"])
def test_compiled_and_exported_models_give_the_same_outputs(kind, rnn):
    model, source, target = rnn(kind), SOURCE[:, 1:4], TARGET[:, :2]
    expected = model(source=source, target=target)["logits"]
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(source=source, target=target)["logits"], expected, rtol=1e-12, atol=1e-12)
    exported = torch.export.export(model, (), {"source": source, "target": target}, strict=False)
    other = source.roll(1, 0)
    found = exported.module()(source=other, target=target)["logits"]
    torch.testing.assert_close(found, model(source=other, target=target)["logits"], rtol=1e-12, atol=1e-12)


def test_one_call_for_all_steps_equals_the_loop(rnn):
    model = rnn("luong")
    whole = model(source=SOURCE, target=TARGET, weights=["*"])
    model.nodes["decoder"].loops = True
    loop = model(source=SOURCE, target=TARGET, weights=["*"])
    torch.testing.assert_close(loop["logits"], whole["logits"], rtol=1e-12, atol=1e-12)
    site = "decoder.0.cross_attention"
    torch.testing.assert_close(loop.weights[site], whole.weights[site], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_hypotheses_that_branch_before_the_first_token_start_from_their_sentence(kind, rnn):
    model = rnn(kind)
    rows = torch.tensor([0, 0, 1, 1, 2, 2])
    state = model.start(source=SOURCE)
    model.branch(state, rows, 2)
    found = model.step(state, TARGET[rows][:, :1], True)["logits"]
    expected = model(source=SOURCE[rows], target=TARGET[rows][:, :1])["logits"]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
