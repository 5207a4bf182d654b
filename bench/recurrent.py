"""Forward and backward passes of recurrent decoders, without encoder and logits.

Bahdanau's equations against the same written by hand with torch.nn.GRUCell, and Luong's attention without input feeding, in
one call for all steps, against its loop over steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from interleaved import report, timed
from torch import Tensor, nn

import tfkit
from tfkit.nn.recurrent import Recurrent

SPEC = """
tfkit: 1
name: recurrent
defaults: {{vocab_size: {vocab}, d_model: {width}, pad_id: 0}}
nodes:
  source:  {{kind: tokens}}
  target:  {{kind: tokens, start_id: 1, end_id: 2}}
  encoder: {{kind: rnn, input: source, cell: {{kind: gru, reset: after}}, d_state: {state}, bidirectional: true}}
  decoder:
    kind: rnn
    input: target
    memory: encoder
    cell: {{kind: gru, reset: after}}
    d_state: {state}
    cross_attention: {{attend: {attend}, score: {score}}}
    initial_state: {{take: first_backward}}
    readout: {{kind: tanh, d_model: {width}}}
  logits:  {{kind: token_logits, input: decoder}}
outputs: [logits]
"""


class ByHand(nn.Module):
    """Bahdanau's decoder with a tanh read-out, as a tutorial writes it."""

    def __init__(self, width: int, state: int) -> None:
        super().__init__()
        self.cell, self.state = nn.GRUCell(width + 2 * state, state), state
        self.query, self.key = nn.Linear(state, state, bias=False), nn.Linear(2 * state, state, bias=False)
        self.score, self.initial = nn.Linear(state, 1, bias=False), nn.Linear(state, state)
        self.readout = nn.Linear(3 * state + width, width)

    def forward(self, memory: Tensor, padding: Tensor, target: Tensor) -> Tensor:
        keys = self.key(memory)
        state = torch.tanh(self.initial(memory[:, 0, self.state :]))
        outputs = []
        for token in target.unbind(1):
            scores = self.score(torch.tanh(self.query(state).unsqueeze(1) + keys)).squeeze(2).masked_fill(padding, -torch.inf)
            context = (scores.softmax(1).unsqueeze(1) @ memory).squeeze(1)
            state = self.cell(torch.cat([token, context], 1), state)
            outputs.append(torch.cat([state, token, context], 1))
        return torch.tanh(self.readout(torch.stack(outputs, 1)))


def decoder_call(model: tfkit.Model, ids: dict[str, Tensor]) -> Callable[[], Tensor]:
    """The decoder alone, on the memory and the tokens of one call of the model."""
    found: dict[str, Any] = {}
    decoder = model.nodes["decoder"]
    handle = decoder.register_forward_pre_hook(
        lambda module, arguments, keywords: found.update(keywords, context=arguments[0]), with_kwargs=True
    )
    model(**ids)
    handle.remove()
    given = {name: replace(found[name], tensor=found[name].tensor.detach().requires_grad_()) for name in ("input", "memory")}
    return lambda: decoder(found["context"], **given).tensor  # type: ignore[no-any-return]


def looping(model: tfkit.Model) -> tfkit.Model:
    """The same model, whose decoder steps through the target although it need not."""
    decoder = model.nodes["decoder"]
    assert isinstance(decoder, Recurrent)
    decoder.loops = True
    return model


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("batch", 64), ("source", 60), ("target", 30), ("vocab", 2000), ("width", 128), ("state", 256)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    sizes = {"vocab": options.vocab, "width": options.width, "state": options.state}

    def built(attend: str, score: str) -> tfkit.Model:
        return tfkit.build(tfkit.parse_spec(SPEC.format(attend=attend, score=score, **sizes)), seed=0)

    B, L, K, M, N = options.batch, options.target, options.source, options.width, options.state
    ids = {name: torch.randint(3, options.vocab, (B, length)) for name, length in (("source", K), ("target", L))}
    hand = ByHand(M, N)
    memory, tokens = torch.randn(B, K, 2 * N, requires_grad=True), torch.randn(B, L, M, requires_grad=True)
    padding = torch.zeros(B, K, dtype=torch.bool)
    calls: dict[str, Callable[[], Tensor]] = {
        "GRUCell by hand": lambda: hand(memory, padding, tokens),
        "tfkit, before the cell": decoder_call(built("before_cell", "additive"), ids),
        "tfkit, after the cell, loop": decoder_call(looping(built("after_cell", "general")), ids),
        "tfkit, after the cell, one call": decoder_call(built("after_cell", "general"), ids),
    }

    def step(call: Callable[[], Tensor]) -> Callable[[], None]:
        return lambda: call().square().sum().backward()  # type: ignore[no-untyped-call]

    seconds = timed({name: step(call) for name, call in calls.items()}, options.rounds, clock=time.process_time)
    title = f"recurrent decoder, forward and backward, {B} rows, {K} source and {L} target tokens, {N} features"
    return report(title, seconds, "GRUCell by hand", options.json)


if __name__ == "__main__":
    main()
