"""A small translator, and rows of text to be reversed, as other trainers take them."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy
import pytest
import torch

from forced import chunked_from

__all__ = ["chunked_from"]

ROOT = Path(__file__).parents[2]
SPEC = {
    "tfkit": 1,
    "name": "reverser",
    "defaults": {
        "d_model": 16,
        "vocab_size": 20,
        "pad_id": 0,
        "position": "sinusoidal",
        "placement": "pre",
        "norm": "layer_norm",
        "attention": {"num_heads": 2},
        "ffn": {"d_ff": 32, "activation": "relu"},
    },
    "nodes": {
        "source": {"kind": "tokens", "end_id": 2},
        "target": {"kind": "tokens", "share": "source", "start_id": 1, "end_id": 2},
        "encoder": {"kind": "stack", "input": "source", "num_layers": 1},
        "decoder": {"kind": "stack", "input": "target", "memory": "encoder", "num_layers": 1, "causal": True},
        "logits": {"kind": "token_logits", "input": "decoder", "share": "source"},
    },
    "outputs": ["logits"],
}


@pytest.fixture(autouse=True)
def _own_generators():
    """Trainers seed the generators of Python, NumPy and torch; other tests have theirs back."""
    kept = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    random.setstate(kept[0])
    numpy.random.set_state(kept[1])


@pytest.fixture
def spec():
    return SPEC


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(3, 20, (64, 6), generator=generator)
    return [{"source": ids, "labels": ids.flip(0)} for ids in drawn]


@pytest.fixture
def shown():
    """`shown("lightning")`: the example of the guide that imports a package."""

    def find(package):
        text = (ROOT / "docs/guides/other-tools.md").read_text(encoding="utf-8")
        blocks = re.findall(r"```py\n(.*?)```", text, flags=re.S)
        [block] = [each for each in blocks if re.search(rf"(import|from) {package}\b", each)]
        return block

    return find
