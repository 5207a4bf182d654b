"""`verify` evaluated by mutants: each must be killed, and unchanged models must pass.

A mutant counts as found only if a property other than the checkpoint fails: that one compares with a model built anew from the
package, which a mutant of the package itself would be in too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tfkit.builder import build
from tfkit.catalogue import Catalogue, load_catalogue
from tfkit.spec import parse_spec
from tfkit_conformance.verification.row import Row, VerifyReport
from tfkit_conformance.verification.verifier import PARTS, disturbed, verify

from .mutants import ModelMutant, Shape, model_mutants

SPECS: dict[Shape, str] = {
    "encoder-decoder": """
tfkit: 1
name: encoder-decoder
defaults:
  {d_model: 12, vocab_size: 23, pad_id: 0, dropout: 0.1, norm: layer_norm, position: sinusoidal, placement: post,
   attention: {num_heads: 2, backend: eager}, ffn: {d_ff: 20, activation: relu}}
nodes:
  source:  {kind: tokens, scale: sqrt_d_model}
  target:  {kind: tokens, share: source, scale: sqrt_d_model, start_id: 1, end_id: 2}
  encoder: {kind: stack, input: source, num_layers: 1}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 2, causal: true}
  logits:  {kind: token_logits, input: decoder, share: source}
outputs: [logits]
""",
    "decoder": """
tfkit: 1
name: decoder
defaults:
  {d_model: 12, vocab_size: 23, pad_id: 0, dropout: 0.1, norm: layer_norm, position: rotary_half, placement: pre,
   attention: {num_heads: 2, head_dim: 12, backend: eager}, ffn: {d_ff: 20, activation: swiglu}}
nodes:
  tokens: {kind: tokens}
  body:   {kind: stack, input: tokens, num_layers: 2, causal: true}
  logits: {kind: token_logits, input: body, share: tokens}
outputs: [logits]
""",
}
LENGTHS = {"encoder-decoder": {"source": 9, "target": 8}, "decoder": {"tokens": 9}}


@dataclass(frozen=True)
class Found:
    """One mutant under one seed: the properties that failed, but for the checkpoint, and the first failure in words."""

    mutant: str
    family: str
    seed: int
    by: tuple[str, ...]
    message: str

    @property
    def killed(self) -> bool:
        return bool(self.by)


def evaluate_model_mutants(
    seeds: Sequence[int] = (0, 1, 2),
    mutants: Iterable[ModelMutant] | None = None,
    dtypes: Sequence[str] = ("float32",),
    parts: Sequence[str] = PARTS,
    catalogue: Catalogue | None = None,
) -> Iterator[Found]:
    """Every mutant under every seed. A model without a mutant is named `none` and must not be killed."""
    catalogue = catalogue or load_catalogue()
    for seed in seeds:
        for shape in SPECS:
            yield _found("none", shape, seed, verify_mutant(shape, seed, None, catalogue, dtypes, parts))
        for mutant in model_mutants() if mutants is None else mutants:
            yield _found(mutant.name, mutant.family, seed, verify_mutant(mutant.shape, seed, mutant, catalogue, dtypes, parts))


def verify_mutant(
    shape: Shape,
    seed: int,
    mutant: ModelMutant | None,
    catalogue: Catalogue,
    dtypes: Sequence[str] = ("float32",),
    parts: Sequence[str] = PARTS,
) -> VerifyReport:
    """`verify` on a small model with a mutant, or without one."""
    model = disturbed(build(parse_spec(SPECS[shape], catalogue), catalogue, seed=seed), seed)
    if mutant is not None:
        model = mutant.apply(model)
    return verify(model, dtypes=dtypes, lengths=LENGTHS[shape], seed=seed, parts=parts, catalogue=catalogue)


def _found(name: str, family: str, seed: int, report: VerifyReport) -> Found:
    failed: list[Row] = [row for row in report.rows if row.status in ("failed", "inconclusive", "not run")]
    told = [row for row in failed if row.property != "checkpoint"]
    message = f"{told[0].property}, {told[0].where}: {told[0].message}" if told else ""
    return Found(name, family, seed, tuple(dict.fromkeys(row.property for row in told)), message)
