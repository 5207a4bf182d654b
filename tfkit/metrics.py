"""Scores of translations by sacrebleu: of detokenised text against the raw reference, with sacrebleu's signature. Scores of
answers, as SQuAD's evaluation script 2.0 computes them.

https://aclanthology.org/W18-6319/, https://aclanthology.org/P18-2124/
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import BuildError, Diagnostic, InputError
from .errors.arguments import check_list, check_texts


@dataclass(frozen=True)
class Score:
    """A score of a corpus.

    Attributes:
        name: Such as `bleu`, `chrf` or `f1`.
        value: 0 to 100.
        signature: sacrebleu's signature, which names all settings; of other scores, what they are.
        verbose: The score in words.
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
        InputError: The numbers of translations and references differ, or are 0; or they are no lists of texts.
        BuildError: The tokeniser needs a package that is not installed.

    Reference:
        https://aclanthology.org/W18-6319/
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    check_texts(hypotheses)
    check_texts(references)
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
    scores = {}
    for name, metric in metrics.items():
        result = metric.corpus_score(list(hypotheses), [list(references)])
        scores[name] = Score(name, float(result.score), str(metric.get_signature()), str(result))
    return scores


def answer_scores(answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Score]:
    """Compute exact match and F1 of answers to questions. Lower case, punctuation, the articles a, an and the, and white space
    do not count. F1 is that of the words of an answer, the best over its references.

    Args:
        answers: The answers; "" if there is none.
        references: The correct answers of each question; none for an unanswerable one.

    Returns:
        The scores `exact_match` and `f1`.

    Raises:
        InputError: The numbers of answers and questions differ, or are 0; or they are no lists of texts.

    Reference:
        https://aclanthology.org/P18-2124/
    """
    check_texts(answers)
    check_list(references)
    for correct in references:
        check_texts(correct)
    if len(answers) != len(references):
        message = f"{len(answers):,} answers and {len(references):,} questions"
        raise InputError(Diagnostic("TFK102", message, "answer n belongs to question n"))
    if not references:
        raise InputError(Diagnostic("TFK103", "there is no answer to score"))
    exact = words = 0.0
    for answer, correct in zip(answers, references, strict=True):
        answer_words = _words(answer)
        golds = [gold for gold in map(_words, correct) if gold] or [[]]
        exact += any(answer_words == gold for gold in golds)
        words += max(_overlap(answer_words, gold) for gold in golds)
    values = {"exact_match": 100 * exact / len(answers), "f1": 100 * words / len(answers)}
    signature = "SQuAD 2.0 evaluation, in per cent"
    return {name: Score(name, value, signature, f"{value:.2f} %") for name, value in values.items()}


def _words(text: str) -> list[str]:
    """The words of a text that count."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def _overlap(words: list[str], gold: list[str]) -> float:
    """F1 of the words of an answer."""
    if not words or not gold:
        return float(words == gold)
    return 2 * (Counter(words) & Counter(gold)).total() / (len(words) + len(gold))
