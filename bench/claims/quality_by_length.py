"""Translators by the length of the text: a recurrent one without attention, one with it, and a Transformer."""

from statistics import fmean

from reversal import ByLength, main

from tfkit.comparison import Comparison

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


def verdict(found: Comparison, by_length: ByLength) -> str:
    """What the models keep of their quality from the shortest to the longest text.

    The data agree if with every seed the recurrent model with attention keeps a larger share than the one without, and is
    better on the longest text.
    """
    shown = []
    for name, buckets in by_length.items():
        first, *_, last = buckets
        shown.append(f"{name} {fmean(buckets[first]):.1f} at {first}, {fmean(buckets[last]):.1f} at {last}")
    ends = [(values[0], values[-1]) for values in (list(by_length[name].values()) for name in ("rnn", "rnn with attention"))]
    (short, long), (attentive_short, attentive_long) = ends
    seeds = list(zip(short, long, attentive_short, attentive_long, strict=True))
    better = sum(attentive > plain for _, plain, _, attentive in seeds)
    keeps = sum(attentive * start > plain * begin for start, plain, begin, attentive in seeds)
    said = "The data agree" if better == keeps == len(seeds) else "Not seen at this size"
    losses = ", ".join(f"{each.name} {each.mean:.2f}" for each in found.candidates)
    return (
        f"{said}: the recurrent model with attention is better on the longest text with {better} of {len(seeds)} seeds, and"
        f" keeps a larger share of its quality on the shortest with {keeps}. Mean by length: {'; '.join(shown)}. Validation"
        f" loss: {losses}."
    )


SETTINGS = {
    "lengths": range(2, 25),
    "specs": SPECS,
    "buckets": [range(2, 7), range(7, 13), range(13, 19), range(19, 25)],
    "verdict": verdict,
}
if __name__ == "__main__":
    main(TEXT, VARIANTS, **SETTINGS)
