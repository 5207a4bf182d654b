"""A small model and its recipe for each kind of data but parallel text, over the sentences of `translation_task`."""

import json

from translation_task import sentences, write_task

HEAD = "defaults:\n  d_model: 16\n  vocab_size: 50\n  pad_id: 0\n  position: sinusoidal\n  placement: pre\n  norm: layer_norm\n"
BODY = (
    "  attention: {num_heads: 2}\n  ffn: {d_ff: 32, activation: gelu}\nnodes:\n  words: {kind: tokens, scale: sqrt_d_model}\n"
)
MODELS = {
    "language": "  body: {kind: stack, input: words, num_layers: 1, causal: true}\n"
    "  out: {kind: token_logits, input: body, share: words}\noutputs: [out]\n",
    "masked": "  body: {kind: stack, input: words, num_layers: 1}\n"
    "  out: {kind: token_logits, input: body, share: words}\noutputs: [out]\n",
    "classification": "  body: {kind: stack, input: words, num_layers: 1}\n  mean: {kind: pool, input: body, take: mean}\n"
    "  out: {kind: classify, input: mean, classes: 2}\noutputs: [out]\n",
}
RECIPE = """\
tfkit: 1
name: kinds
model: model.yaml
data: %s
tokeniser: {kind: %s}
batching: {tokens: 400, max_length: 20}
loss: {label_smoothing: 0.0}
schedule: {kind: inverse_sqrt, peak: 2.0e-2, warmup_steps: 20}
stopping: {max_steps: 80}
validation: {every_steps: 40, metric: %s}
"""


def recipe_for(folder, kind, metric="loss", tokeniser="bpe, vocab_size: 80, byte_fallback: false"):
    write_task(folder, 400)
    option = "table: text.tsv" if kind == "classification" else "text: train.src"
    rows = [source for source, _ in sentences(400)]
    labels = ["animal" if {"dog", "cat"} & set(row.split()) else "thing" for row in rows]
    table = "".join(f"{row}\t{label}\n" for row, label in zip(rows, labels, strict=True))
    (folder / "text.tsv").write_text(table)
    (folder / "model.yaml").write_text(f"tfkit: 1\nname: kinds\n{HEAD}{BODY}{MODELS[kind]}")
    (folder / "r.yaml").write_text(RECIPE % (f"{{kind: {kind}, {option}}}", tokeniser, metric))
    return folder / "r.yaml"


def validations(run):
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [entry for entry in entries if entry["kind"] == "validation"]
