"""Recurrent translators by the length of the text, without attention and with it, read one way and both; and a Transformer."""

from statistics import fmean

from reversal import Pair, Result, main

TEXT = "One context vector forgets long text, attention does not"
RECURRENT = """\
tfkit: 1
name: recurrent
defaults: {vocab_size: 24, d_model: 64, pad_id: 0}
nodes:
  source:  {kind: tokens}
  target:  {kind: tokens, start_id: 1, end_id: 2}
  encoder: {kind: rnn, input: source, cell: gru, d_state: 64}
  decoder: {kind: rnn, input: target, memory: encoder, cell: gru, d_state: 64, initial_state: {take: last},
    readout: {kind: tanh, d_model: 64}}
  logits:  {kind: token_logits, input: decoder, share: target}
outputs: [logits]
"""
CHO = RECURRENT.replace("  decoder:", "  context: {kind: pool, input: encoder, take: last}\n  decoder:").replace(
    "memory: encoder", "memory: context"
)
BAHDANAU = RECURRENT.replace("cell: gru, d_state: 64}", "cell: gru, d_state: 64, bidirectional: true}").replace(
    "{take: last}", "{take: first_backward}, cross_attention: {attend: before_cell, score: additive}"
)
SPECS = {"recurrent.yaml": RECURRENT, "cho.yaml": CHO, "bahdanau.yaml": BAHDANAU}
PLAIN = ["model=recurrent.yaml"]
ATTENTION = "model.decoder.cross_attention={attend: before_cell, score: additive}"
BOTH_WAYS = "model.encoder.bidirectional=true"
VARIANTS = {
    "rnn": PLAIN,
    "rnn with attention": [*PLAIN, ATTENTION],
    "both ways": [*PLAIN, BOTH_WAYS],
    "both ways with attention": [*PLAIN, BOTH_WAYS, ATTENTION],
    "transformer": [],
}
PAPERS = {"vector in every step": ["model=cho.yaml"], "rnnsearch": ["model=bahdanau.yaml"]}
"""The models of Cho et al. and of Bahdanau et al. differ in more than one setting, and are in no pair."""

PAIRS = [
    Pair("rnn with attention", "rnn", "cross_attention"),
    Pair("both ways with attention", "both ways", "cross_attention"),
    Pair("both ways", "rnn", "bidirectional"),
    Pair("both ways with attention", "rnn with attention", "bidirectional"),
]


def verdict(result: Result) -> str:
    """The data agree if with every seed attention alone makes the longest text better, and keeps a larger share of the quality
    on the shortest. The other pairs say what reading both ways adds."""
    by_length, sentences = result["accuracy_by_length"], []
    for pair in PAIRS:
        if {pair.better, pair.other} <= {*by_length}:
            ends = [list(by_length[name].values()) for name in (pair.other, pair.better)]
            seeds = list(zip(ends[0][0], ends[0][-1], ends[1][0], ends[1][-1], strict=True))
            longest = sum(better > other for _, other, _, better in seeds)
            keeps = sum(better * start > other * begin for start, other, begin, better in seeds)
            word = "the data agree" if longest == keeps == len(seeds) else "not seen at this size"
            claim = f": {word}" if pair.setting == "cross_attention" else ""
            sentences.append(
                f"{pair.better} against {pair.other}{claim}; better on the longest text with {longest} of {len(seeds)} seeds,"
                f" keeps a larger share of its quality on the shortest with {keeps}."
            )
    if not sentences:
        sentences.append("No two of these recipes differ in attention alone, so they say nothing of the claim.")
    means = []
    for name, buckets in by_length.items():
        first, *_, last = buckets
        means.append(f"{name} {fmean(buckets[first]):.1f} at {first}, {fmean(buckets[last]):.1f} at {last}")
    losses = ", ".join(f"{each['name']} {each['mean']:.2f}" for each in result["recipes"])
    return f"{' '.join(sentences)} Mean by length: {'; '.join(means)}. Validation loss: {losses}."


SETTINGS = {
    "lengths": range(2, 25),
    "specs": SPECS,
    "buckets": [range(2, 7), range(7, 13), range(13, 19), range(19, 25)],
    "pairs": PAIRS,
    "verdict": verdict,
}
if __name__ == "__main__":
    main(TEXT, VARIANTS, **SETTINGS)
