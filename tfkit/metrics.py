"""Scores of translations by sacrebleu: detokenised text against the raw reference, with the signature that says what was
computed. https://aclanthology.org/W18-6319/"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import BuildError, Diagnostic, InputError


@dataclass(frozen=True)
class Score:
    """One score of a corpus, 0 to 100, with sacrebleu's signature and its own way to print it."""

    name: str
    value: float
    signature: str
    verbose: str


def corpus_scores(hypotheses: Sequence[str], references: Sequence[str], tokenise: str | None = None) -> dict[str, Score]:
    """`bleu`, `bleu_lowercase` and `chrf` (chrF2) of translations, line by line against one reference each.

    `tokenise` is sacrebleu's tokeniser of BLEU (13a unless given; for Korean ko-mecab, for languages without spaces char).
    Raises InputError where there are more of one than of the other, or none.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    if len(hypotheses) != len(references):
        message = f"{len(hypotheses):,} translations and {len(references):,} references"
        raise InputError(Diagnostic("TFK102", message, "line n of one belongs to line n of the other"))
    if not references:
        raise InputError(Diagnostic("TFK103", "there is no line to score"))
    try:
        metrics = {
            "bleu": BLEU(tokenize=tokenise),
            "bleu_lowercase": BLEU(tokenize=tokenise, lowercase=True),
            "chrf": CHRF(),
        }
    except (ImportError, RuntimeError):  # what sacrebleu raises for a dictionary that is not installed
        fix = f"pip install 'sacrebleu[{str(tokenise)[:2]}]', or take `char`"
        raise BuildError(
            Diagnostic("TFK097", f"sacrebleu's tokeniser `{tokenise}` needs a package that is not installed", fix)
        ) from None
    found = {}
    for name, metric in metrics.items():
        result = metric.corpus_score(list(hypotheses), [list(references)])
        found[name] = Score(name, float(result.score), str(metric.get_signature()), str(result))
    return found
