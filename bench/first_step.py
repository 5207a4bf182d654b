"""The main job on a few sentences: tokenise, build transformer-base, and take one training step. `make demo` runs this."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch.nn import functional

import tfkit

PAIRS = [
    ("the kettle is on the stove", "der kessel steht auf dem herd"),
    ("two children build a tower of boxes", "zwei kinder bauen einen turm aus kisten"),
    ("a night train leaves the station", "ein nachtzug verlässt den bahnhof"),
    ("she reads by the open window", "sie liest am offenen fenster"),
    ("the dog will not leave the boat", "der hund will das boot nicht verlassen"),
]
PAD, START, END = 0, 1, 2


def batch_of(sentences: list[str], ids: dict[str, int], *, start: bool) -> torch.Tensor:
    """(B, L) word ids with an end token, a start token where asked for, and padding on the right."""
    rows = [([START] if start else []) + [ids[word] for word in sentence.split()] + [END] for sentence in sentences]
    length = max(map(len, rows))
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", default=str(Path(__file__).parent.parent / "specs" / "transformer-base.yaml"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    words = sorted({word for pair in PAIRS for sentence in pair for word in sentence.split()})
    ids = {word: number for number, word in enumerate(words, start=END + 1)}
    source = batch_of([pair[0] for pair in PAIRS], ids, start=False)
    target = batch_of([pair[1] for pair in PAIRS], ids, start=True)

    model = tfkit.build(arguments.spec)
    logits = model(source=source, target=target[:, :-1])["logits"]
    loss = functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
    loss.backward()
    gradient = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))

    tokens = int((target[:, 1:] != PAD).sum())
    print(f"one training step of {model.plan.name}, {model.parameter_count():,} parameters")
    print(f"  source {tuple(source.shape)}, target {tuple(target.shape)}: {len(PAIRS)} sentence pairs, {tokens} target tokens")
    print(f"  logits {tuple(logits.shape)}, loss {loss.item():.3f} (an even guess: {math.log(logits.shape[-1]):.3f})")
    print(f"  gradient norm {gradient:.3f}, reaching {sum(p.grad is not None for p in model.parameters())} of "
          f"{len(list(model.parameters()))} parameters")  # fmt: skip


if __name__ == "__main__":
    main()
