"""A small encoder with segments and its recipe, for each kind of data of BERT; its text is drawn from `translation_task`."""

import json
import random

from translation_task import WORDS

SPEC = """\
tfkit: 1
name: small-bert
defaults:
  d_model: 16
  position: {kind: learned, max_len: 40}
  placement: post
  norm: layer_norm
  attention: {num_heads: 2}
  ffn: {d_ff: 32, activation: gelu}
nodes:
  tokens: {kind: tokens, vocab_size: 50, pad_id: 0, segments: 2, embedding_norm: layer_norm}
  encoder: {kind: stack, input: tokens, num_layers: 2}
"""
POOLED = "  first: {kind: pool, input: encoder, take: first}\n  pooled: {kind: dense, input: first, activation: tanh}\n"
HEADS = {
    "masked_pairs": POOLED
    + """\
  transform: {kind: dense, input: encoder, activation: gelu, output_norm: layer_norm}
  words: {kind: token_logits, input: transform, share: tokens, bias: true}
  next: {kind: classify, input: pooled, classes: 2}
outputs: [words, next]
""",
    "tagged": "  out: {kind: classify, input: encoder, classes: 2}\noutputs: [out]\n",
    "spans": "  out: {kind: span_logits, input: encoder}\noutputs: [out]\n",
    "pairs": POOLED + "  out: {kind: classify, input: pooled, classes: 2}\noutputs: [out]\n",
}
RECIPE = """\
tfkit: 1
name: small-bert
model: model.yaml
data: {kind: %s, %s}
tokeniser: {kind: bpe, vocab_size: 80, byte_fallback: false}
batching: {tokens: 400, max_length: 24}
loss: {label_smoothing: 0.0}
optimiser: adamw
schedule: {kind: constant, peak: 5.0e-3, warmup_steps: 10}
stopping: {max_steps: %d}
validation: {every_steps: 20, metric: %s}
keeping: {every_steps: 5}
"""


def words(draw, fewest=1, most=4):
    return " ".join(draw.choices(sorted(set(WORDS) - {"dog"}), k=draw.randint(fewest, most)))


def pairs(count, seed=0):
    """Pairs of texts of which one has a dog, and which one."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        texts, place = [words(draw), words(draw)], draw.randrange(2)
        texts[place] += " dog"
        rows.append((*texts, ("left", "right")[place]))
    return rows


def write_pairs(folder):
    (folder / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in pairs(400)))
    return "table: train.tsv"


def write_documents(folder):
    """Documents that have three words each."""
    draw, documents = random.Random(0), []
    for _ in range(60):
        own = draw.sample(sorted(WORDS), 3)
        documents.append([" ".join(draw.choices(own, k=draw.randint(1, 6))) for _ in range(draw.randint(1, 12))])
    (folder / "train.txt").write_text("\n".join("".join(f"{line}\n" for line in lines) for lines in documents))
    return "text: train.txt"


def tagged(count, seed=0):
    """Sentences with names of animals; an old or a new animal has a longer name."""
    draw, sentences = random.Random(seed), []
    for _ in range(count):
        sentence = [(word, "O") for word in words(draw).split() if word not in ("cat", "old", "new")]
        for _ in range(draw.randint(0, 2)):
            name = [("old", "B-ANIMAL"), ("cat", "I-ANIMAL")] if draw.random() < 0.5 else [("dog", "B-ANIMAL")]
            sentence += [*name, ("sees", "O")]
        sentences.append(sentence or [("the", "O")])
    return sentences


def write_tagged(folder):
    text = "\n".join("".join(f"{word} {tag}\n" for word, tag in sentence) for sentence in tagged(200))
    (folder / "train.conll").write_text(text)
    return "table: train.conll"


def questions(count, seed=0):
    """Questions with contexts of up to 20 words, and the place of the dog, or of the old dog, if there is one."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        context, answer = words(draw, 1, 20).split(), draw.choice(["dog", "old dog", "old dog", "dog", ""])
        at = draw.randint(0, len(context))
        start = len("".join(f"{word} " for word in context[:at]))
        context[at:at] = [answer] if answer else []
        given = {"answer": answer, "answer_start": start} if answer else {"answer": ""}
        rows.append({"question": "which dog", "context": " ".join(context), **given})
    return rows


def write_questions(folder):
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions(300)))
    return "questions: train.jsonl"


FILES = {"spans": write_questions, "tagged": write_tagged, "masked_pairs": write_documents, "pairs": write_pairs}


def recipe_for(folder, kind, metric="loss", steps=40):
    """Write the files of a task; returns the path of its recipe."""
    (folder / "model.yaml").write_text(SPEC + HEADS[kind])
    (folder / "r.yaml").write_text(RECIPE % (kind, FILES[kind](folder), steps, metric))
    return folder / "r.yaml"


def logged(run, kind):
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [entry for entry in entries if entry["kind"] == kind]


def validations(run):
    return logged(run, "validation")
