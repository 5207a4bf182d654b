"""Scores of translations by sacrebleu: of detokenised text against the raw reference, with sacrebleu's signature. Scores of
answers, as SQuAD's evaluation script 2.0 computes them. Scores of word alignments.

https://aclanthology.org/W18-6319/, https://aclanthology.org/P18-2124/, https://aclanthology.org/J03-1002/
"""

from __future__ import annotations

import os
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import BuildError, Diagnostic, InputError
from .errors.arguments import check_list, check_texts, check_whole

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEU


TOKENISERS = ("13a", "intl", "zh", "char", "ja-mecab", "ko-mecab", "flores200", "flores101", "spm", "none")
"""sacrebleu's tokenisers of BLEU. `spm` is the older name of `flores101`."""
MOST_RESAMPLES = 100_000
HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
OTHERS_WITHOUT_SPACES = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff]")
"""Kana, Thai, Lao, Tibetan, Burmese and Khmer."""
WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Score:
    """A score of a corpus.

    Attributes:
        name: Such as `bleu`, `chrf` or `f1`.
        value: 0 to 100.
        signature: sacrebleu's signature, which names all settings; of other scores, what they are.
        verbose: The score in words.
        comparison: How it differs from the score of another system; None unless requested.
    """

    name: str
    value: float
    signature: str
    verbose: str
    comparison: Comparison | None = None


@dataclass(frozen=True)
class Comparison:
    """The difference of the scores of two systems by paired bootstrap resampling, as sacrebleu does it.

    Attributes:
        baseline: The score of the other system.
        p_value: The probability of such a difference, or a larger one, if the systems were equally good.
        mean: The mean score over the resamples.
        interval: Half the width of its 95 % confidence interval.
        baseline_mean: As `mean`, of the other system.
        baseline_interval: As `interval`, of the other system.
    """

    baseline: float
    p_value: float
    mean: float
    interval: float
    baseline_mean: float
    baseline_interval: float


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], tokenise: str | None = None, *,
    more_references: Sequence[Sequence[str]] = (), ter: bool = False, baseline: Sequence[str] | None = None,
    resamples: int = 1000,
) -> dict[str, Score]:  # fmt: skip
    """Compute BLEU, lower-case BLEU and chrF2 of translations, on request TER, against one reference each or several.

    Args:
        hypotheses: The translations.
        references: The references, in the same order.
        tokenise: sacrebleu's tokeniser of BLEU, one of `TOKENISERS`. By default the script of the references chooses it: `zh`
            for Chinese, `char` for Japanese, Thai, Lao, Tibetan, Burmese and Khmer, 13a for all others.
        more_references: Further references of all translations, a list for each set; "" where a translation has none.
        ter: Whether to compute TER, the translation edit rate, which is slow.
        baseline: The translations of another system. Each score is then compared with the other's by paired bootstrap
            resampling (Koehn 2004), with sacrebleu's seed, 12345, or that in `SACREBLEU_SEED`.
        resamples: How often it resamples.

    Returns:
        The scores `bleu`, `bleu_lowercase` and `chrf`, and perhaps `ter`, of which a lower one is better.

    Raises:
        InputError: The numbers of translations and references differ, or are 0; or they are no lists of texts.
        BuildError: The tokeniser needs a package or a file that is not installed.

    Reference:
        https://aclanthology.org/W18-6319/, https://aclanthology.org/W04-3250/
    """
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    check_list(more_references)
    for texts in (hypotheses, references, *more_references, *([] if baseline is None else [baseline])):
        check_texts(texts)
    for what, texts in (("references", references), *(("further references", further) for further in more_references)):
        if len(hypotheses) != len(texts):
            message = f"{len(hypotheses):,} translations and {len(texts):,} {what}"
            raise InputError(Diagnostic("TFK102", message, "line n of one belongs to line n of the other"))
    if baseline is not None and len(baseline) != len(hypotheses):
        message = f"{len(hypotheses):,} translations and {len(baseline):,} of the baseline"
        raise InputError(Diagnostic("TFK102", message, "line n of one belongs to line n of the other"))
    check_whole("resamples", resamples, 1, MOST_RESAMPLES)
    if not references:
        raise InputError(Diagnostic("TFK103", "there is no line to score"))
    name = tokenise or tokeniser_for(references)
    metrics = {"bleu": bleu(name), "bleu_lowercase": bleu(name, lowercase=True), "chrf": CHRF()}
    metrics |= {"ter": TER()} if ter else {}
    scores, all_references = {}, [list(references), *map(list, more_references)]
    for name, metric in metrics.items():
        result = metric.corpus_score(list(hypotheses), all_references)
        signature, comparison = str(metric.get_signature()), None
        if baseline is not None:
            signature, comparison = _compared(metric, list(hypotheses), list(baseline), all_references, resamples)
        scores[name] = Score(name, float(result.score), signature, str(result), comparison)
    return scores


def _compared(
    metric: Metric, hypotheses: list[str], baseline: list[str], references: list[list[str]], resamples: int
) -> tuple[str, Comparison]:
    """sacrebleu's signature of a paired bootstrap test, and its result. Raises InputError for a seed that is no number."""
    from sacrebleu.significance import PairedTest

    systems = [("baseline", baseline), ("system", hypotheses)]
    try:
        test: Any = PairedTest(systems, {"metric": metric}, references, "bs", resamples)  # type: ignore[arg-type]
    except ValueError:
        message = f"SACREBLEU_SEED is {os.environ.get('SACREBLEU_SEED', '')[:60]!r}"
        raise InputError(Diagnostic("TFK078", message, "set it to a whole number, to `none`, or not at all")) from None
    signatures, results = test()
    ((name, signature),) = signatures.items()
    other, mine = results[name]
    numbers = (other.score, mine.p_value, mine.mean, mine.ci, other.mean, other.ci)
    return str(signature), Comparison(*(float(number) for number in numbers))


def tokeniser_for(references: Iterable[str]) -> str:
    """The tokeniser of BLEU for the script of some texts. A script without spaces counts if the texts have more of its
    characters than words of others."""
    han = others = words = 0
    for line in references:
        han += len(HAN.findall(line))
        others += len(OTHERS_WITHOUT_SPACES.findall(line))
        words += len(WORD.findall(OTHERS_WITHOUT_SPACES.sub(" ", HAN.sub(" ", line))))
    if han + others <= words:
        return "13a"
    return "zh" if han > 9 * others else "char"


def bleu(tokenise: str, lowercase: bool = False) -> BLEU:
    """sacrebleu's BLEU. Raises InputError for an unknown tokeniser, BuildError for one that is not installed."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR

    if tokenise not in TOKENISERS:
        known = f"known: {', '.join(TOKENISERS)}"
        raise InputError(Diagnostic("TFK078", f"there is no BLEU tokeniser `{str(tokenise)[:60]}`", known))
    model = SPM_MODELS.get(tokenise)
    if model is not None:
        file = os.path.join(SACREBLEU_DIR, "models", os.path.basename(model["url"]))
        if not os.path.exists(file):  # sacrebleu would fetch it
            message = f"sacrebleu's tokeniser `{tokenise}` needs {file}, which is not there"
            fix = f"`sacrebleu --tokenize {model['signature']} FILE -i FILE` fetches it, once"
            raise BuildError(Diagnostic("TFK097", message, fix))
    try:
        return BLEU(tokenize=model["signature"] if model else tokenise, lowercase=lowercase)
    except (ImportError, RuntimeError):  # what sacrebleu raises for a package that is not installed
        package = "sentencepiece" if model else f"'sacrebleu[{tokenise[:2]}]'"
        message = f"sacrebleu's tokeniser `{tokenise}` needs a package that is not installed"
        raise BuildError(Diagnostic("TFK097", message, f"pip install {package}, or use `char`")) from None


Links = Set[tuple[int, int]]
"""Pairs of a source word and a target word."""


def alignment_counts(links: Links, sure: Links, possible: Links) -> tuple[int, int, int, int]:
    """|A|, |S|, |A and S|, |A and P| of a sentence, where P has the sure links S, too."""
    return len(links), len(sure), len(links & sure), len(links & (possible | sure))


def alignment_scores(links: int, sure: int, right_sure: int, right: int) -> dict[str, Score]:
    """Compute the error rate, the precision and the recall of word alignments, in per cent, from the counts of a corpus.

    precision = |A and P| / |A|,   recall = |A and S| / |S|,   AER = 1 - (|A and S| + |A and P|) / (|A| + |S|)

    Args:
        links: |A|, the links to score.
        sure: |S|, the sure links of the gold alignment.
        right_sure: |A and S|.
        right: |A and P|, where P has the sure and the possible links.

    Returns:
        The scores `aer`, `precision` and `recall`.

    Raises:
        InputError: There is no link, and no sure one.

    Reference:
        https://aclanthology.org/J03-1002/
    """
    if not links + sure:
        raise InputError(Diagnostic("TFK103", "there is no link to score", "name alignments that have links"))
    values = {
        "aer": (1 - (right_sure + right) / (links + sure), f"{links:,} links, {sure:,} sure ones in the gold alignment"),
        "precision": (right / links if links else 0.0, f"{right:,} of {links:,} links are sure or possible"),
        "recall": (right_sure / sure if sure else 0.0, f"{right_sure:,} of {sure:,} sure links are there"),
    }
    signature = "word alignment, Och and Ney 2003, in per cent"
    return {name: Score(name, 100 * value, signature, words) for name, (value, words) in values.items()}


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
