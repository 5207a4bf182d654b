"""The catalogue of the spec tests: what is installed, and a stand-in for node and sub-layer kinds that come later.

The stand-ins (`acme.conv`, `acme.broken`) have options and nothing behind them: enough to say a spec, not to build it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import AfterValidator

from command_line import no_lines_of_progress, tfkit, usual_width
from tfkit import Catalogue, Diagnostic, ModelSpec, SpecError, load_catalogue, parse_spec
from tfkit.plugin import (
    Norm,
    Options,
    Size,
    SublayerKind,
    SublayerOptions,
    hookimpl,
)

__all__ = ["no_lines_of_progress", "tfkit", "usual_width"]


class ConvOptions(SublayerOptions):
    width: Size = 31


def _breaks(value: int) -> int:
    return {1: 1}[value]


class BrokenOptions(Options):
    number: Annotated[int, AfterValidator(_breaks)] = 1


class StandIns:
    """A plugin as an object: its methods are hooks."""

    @hookimpl
    def tfkit_sublayer_kinds(self) -> list[SublayerKind]:
        return [
            SublayerKind(
                name="acme.conv", summary="convolution", options=ConvOptions, option_keys=("acme_conv",), reads="none",
                parameters=lambda options, context: (), build="x:x",
            )
        ]  # fmt: skip

    @hookimpl
    def tfkit_norms(self) -> list[Norm]:
        return [
            Norm(name="acme.broken", summary="", options=BrokenOptions, parameters=lambda options, width: (), build="x:x"),
        ]


@pytest.fixture(scope="session")
def installed() -> Catalogue:
    """What is installed, and nothing else."""
    return load_catalogue()


@pytest.fixture(scope="session")
def catalogue(installed: Catalogue) -> Catalogue:
    """What is installed, and the stand-ins."""
    return installed.with_plugin(StandIns(), "stand_ins")


@pytest.fixture
def drafts() -> Path:
    return Path(__file__).parent / "drafts"


SPEC = """\
tfkit: 1
name: small
defaults:
  d_model: 64
  vocab_size: 100
  pad_id: 0
  position: sinusoidal
  placement: post
  norm: {kind: layer_norm, eps: 1.0e-5}
  attention: {num_heads: 4}
  ffn: {d_ff: 128, activation: relu}
nodes:
  source:  {kind: tokens}
  target:  {kind: tokens, share: source}
  encoder: {kind: stack, input: source, num_layers: 2}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 2, causal: true}
  logits:  {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""


@pytest.fixture
def text() -> str:
    """A correct spec, to be changed by a test."""
    return SPEC


@pytest.fixture
def errors_of(catalogue: Catalogue) -> Callable[..., list[Diagnostic]]:
    """The errors of a text, none if it is a correct spec."""

    def diagnostics(text: str | bytes, *overrides: str) -> list[Diagnostic]:
        try:
            parse_spec(text, catalogue, overrides, "a.yaml")
        except SpecError as error:
            return list(error.diagnostics)
        return []

    return diagnostics


@pytest.fixture
def spec_of(catalogue: Catalogue) -> Callable[..., ModelSpec]:
    return lambda text, *overrides: parse_spec(text, catalogue, overrides, "a.yaml")
