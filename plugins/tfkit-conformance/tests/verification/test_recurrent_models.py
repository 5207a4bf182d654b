"""`verify` on recurrent models: a site that is called at every step, and mistakes of recurrent decoders that it must find."""

from __future__ import annotations

import pytest
import torch

import tfkit
from tfkit import DecodingState
from tfkit.nn import recurrent, recurrent_layer
from tfkit_conformance.verification import verify
from tfkit_conformance.verification.batch import draw
from tfkit_conformance.verification.recording import record
from tfkit_conformance.verification.site_runs import backward

SPEC = """
tfkit: 1
name: recurrent
defaults: {vocab_size: 23, d_model: 6, pad_id: 0}
nodes:
  source:  {kind: tokens}
  target:  {kind: tokens, start_id: 1, end_id: 2}
  encoder: {kind: rnn, input: source, cell: gru, d_state: 5, bidirectional: true}
  decoder:
    kind: rnn
    input: target
    memory: encoder
    cell: gru
    d_state: 5
    cross_attention: {attend: before_cell, score: general, backend: eager}
    initial_state: {take: first_backward}
    readout: {kind: maxout, d_model: 4}
  logits:  {kind: token_logits, input: decoder}
outputs: [logits]
"""
LENGTHS = {"source": 9, "target": 8}
SITE = "decoder.0.cross_attention"


@pytest.fixture(scope="module")
def spec(catalogue):
    return tfkit.parse_spec(SPEC, catalogue)


def failed(spec, catalogue):
    report = verify(spec, dtypes=("float32",), parts=["whole model"], lengths=LENGTHS, catalogue=catalogue)
    return {row.property for row in report.rows if row.status == "failed"}


def test_every_step_of_a_loop_is_recorded_forward_and_backward(spec, catalogue):
    model = tfkit.build(spec, catalogue, seed=1).eval()
    batch = draw(model, LENGTHS, 3, 0, "cpu")
    steps = LENGTHS["target"]
    assert [call.inputs.query.shape[2] for call in record(model, batch).sites[SITE]] == [1] * steps
    logits = model(**batch.call())["logits"]
    runs = backward(model, batch, {"logits": torch.ones_like(logits)}).runs
    assert len(runs[SITE]) == steps
    assert all(run.grad_output is not None and run.gradients for run in runs[SITE])


def states_stay_in_their_rows(state, rows):
    before = state.recurrent
    keep(state, rows)
    state.recurrent = {name: tuple(tensor[: len(rows)] for tensor in tensors) for name, tensors in before.items()}


keep = DecodingState._keep_hypotheses
MISTAKES = {
    "states are not reordered": (DecodingState, "_keep_hypotheses", states_stay_in_their_rows, "reordered rows"),
    "padding changes a state": (recurrent, "held", lambda new, old, seen: new, "left padding"),
    "a state is forgotten between steps": (
        recurrent.Recurrent, "_first",
        lambda node, context, x, memory: ([node._initial_states(memory, x, 1)], None), "decoding in chunks",
    ),
    "the encoder does not skip padding": (recurrent_layer, "held", lambda new, old, seen: new, "padding content"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake, spec, catalogue, monkeypatch):
    where, name, wrong, found_by = MISTAKES[mistake]
    monkeypatch.setattr(where, name, wrong)
    assert found_by in failed(spec, catalogue)


@pytest.mark.slow
def test_the_correct_model_passes(spec, catalogue):
    assert failed(spec, catalogue) == set()
