"""Scores of translations by sacrebleu: of detokenised text against the raw reference, with sacrebleu's signature.

https://aclanthology.org/W18-6319/
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import BuildError, Diagnostic, InputError


@dataclass(frozen=True)
class Score:
    """A score of a corpus.

    Attributes:
        name: `bleu`, `bleu_lowercase` or `chrf`.
        value: 0 to 100.
        signature: sacrebleu's signature, which names all settings.
        verbose: The score as sacrebleu prints it.
    """

    name: str
    value: float
    signature: str
    verbose: str


def corpus_scores(hypotheses: Sequence[str], references: Sequence[str], tokenise: str | None = None) -> dict[str, Score]:
    """Compute BLEU, lower-case BLEU and chrF2 of translations against one reference each.

    Args:
        hypotheses: The translations.
        references: The references, in the same order.
        tokenise: sacrebleu's tokeniser of BLEU; 13a by default. Use `ko-mecab` for Korean, `char` for languages without spaces.

    Returns:
        The scores `bleu`, `bleu_lowercase` and `chrf`.

    Raises:
        InputError: The numbers of translations and references differ, or are 0.
        BuildError: The tokeniser needs a package that is not installed.

    Reference:
        https://aclanthology.org/W18-6319/
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
        fix = f"pip install 'sacrebleu[{str(tokenise)[:2]}]', or use `char`"
        raise BuildError(
            Diagnostic("TFK097", f"sacrebleu's tokeniser `{tokenise}` needs a package that is not installed", fix)
        ) from None
    found = {}
    for name, metric in metrics.items():
        result = metric.corpus_score(list(hypotheses), [list(references)])
        found[name] = Score(name, float(result.score), str(metric.get_signature()), str(result))
    return found
