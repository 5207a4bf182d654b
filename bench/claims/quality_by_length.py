"""Translators by the length of the text: a recurrent one without attention, one with it, and a Transformer."""

from reversal import main

TEXT = "One context vector forgets long text, attention does not"
DEFAULTS = "tfkit: 1\nname: recurrent\ndefaults: {vocab_size: 24, d_model: 64, pad_id: 0}\nnodes:\n"
ENDS = """\
  source:  {kind: tokens}
  target:  {kind: tokens, start_id: 1, end_id: 2}
  logits:  {kind: token_logits, input: decoder, share: target}
outputs: [logits]
"""
CONTEXT = """\
  encoder: {kind: rnn, input: source, cell: gru, d_state: 64}
  context: {kind: pool, input: encoder, take: last}
  decoder: {kind: rnn, input: target, memory: context, cell: gru, d_state: 64, initial_state: {take: last},
    readout: {kind: tanh, d_model: 64}}
"""
ATTENTION = """\
  encoder: {kind: rnn, input: source, cell: gru, d_state: 64, bidirectional: true}
  decoder: {kind: rnn, input: target, memory: encoder, cell: gru, d_state: 64, initial_state: {take: first_backward},
    cross_attention: {attend: before_cell, score: additive}, readout: {kind: tanh, d_model: 64}}
"""
SPECS = {"context.yaml": DEFAULTS + CONTEXT + ENDS, "attention.yaml": DEFAULTS + ATTENTION + ENDS}
VARIANTS = {
    "rnn": ["model=context.yaml"],
    "rnn with attention": ["model=attention.yaml"],
    "transformer": [],
}
SETTINGS = {"lengths": range(2, 25), "specs": SPECS, "buckets": [range(2, 7), range(7, 13), range(13, 19), range(19, 25)]}
if __name__ == "__main__":
    main(TEXT, VARIANTS, **SETTINGS)
