"""Running a command in this process, as a user would on a command line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tfkit import Catalogue
from tfkit.cli import main

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Done:
    """What a command answered."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output, which is JSON and nothing else; standard error, which is empty."""
        assert self.err == ""
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def usual_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a terminal says of its width, or a test runner in its place, changes no test."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine prints progress every half minute; no test reads it."""
    monkeypatch.setattr("tfkit.cli.progress.SECONDS", 1e6)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes | str], None]:
    """`typed("a line\n")` is what standard input has from now on."""

    def give(text: bytes | str) -> None:
        data = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Catalogue], None]:
    """`installed(catalogue)`: what commands find installed from now on."""

    def install(catalogue: Catalogue) -> None:
        monkeypatch.setattr("tfkit.catalogue.load_catalogue", lambda: catalogue)

    return install


@pytest.fixture
def tfkit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """`tfkit("check", path)`; paths are relative to the root of the repository."""
    monkeypatch.chdir(ROOT)

    def run(*words: Any) -> Done:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Done(code, out, err)

    return run


SMALL = """
tfkit: 1
name: small
defaults:
  {d_model: 12, vocab_size: 11, pad_id: 0, position: sinusoidal, placement: post, norm: layer_norm, attention: {num_heads: 2},
   ffn: {d_ff: 20, activation: relu}}
nodes:
  source:  {kind: tokens}
  target:  {kind: tokens, share: source, start_id: 1, end_id: 2}
  encoder: {kind: stack, input: source, num_layers: 2}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 3, causal: true}
  logits:  {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A spec that builds in no time."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path
