"""Tokenisers of models that have one sentencepiece file: how each family orders its ids, and what it puts around a text.

They are those of `convert_slow_tokenizer.py` and `tokenization_*.py` of transformers 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .sentencepiece_file import SentencePieceModel

Pieces = list[list[Any]]
Settings = Mapping[str, Any]
MBART_LANGUAGES = (
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN", "it_IT", "ja_XX", "kk_KZ",
    "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN",
)  # fmt: skip
"""The languages of mBART, in the order of their ids."""
M2M_LANGUAGES = (
    "af", "am", "ar", "ast", "az", "ba", "be", "bg", "bn", "br", "bs", "ca", "ceb", "cs", "cy", "da", "de", "el", "en",
    "es", "et", "fa", "ff", "fi", "fr", "fy", "ga", "gd", "gl", "gu", "ha", "he", "hi", "hr", "ht", "hu", "hy", "id",
    "ig", "ilo", "is", "it", "ja", "jv", "ka", "kk", "km", "kn", "ko", "lb", "lg", "ln", "lo", "lt", "lv", "mg", "mk",
    "ml", "mn", "mr", "ms", "my", "ne", "nl", "no", "ns", "oc", "or", "pa", "pl", "ps", "pt", "ro", "ru", "sd", "si",
    "sk", "sl", "so", "sq", "sr", "ss", "su", "sv", "sw", "ta", "th", "tl", "tn", "tr", "uk", "ur", "uz", "vi", "wo",
    "xh", "yi", "yo", "zh", "zu",
)  # fmt: skip
"""The languages of M2M-100, in the order of their ids."""
SPECIAL = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
"""The special tokens of fairseq by role."""


def _scored(model: SentencePieceModel, first: int) -> Pieces:
    return [[piece.piece, piece.score] for piece in model.pieces[first:]]


def albert_pieces(model: SentencePieceModel, settings: Settings) -> Pieces:
    """The pieces of the file."""
    return _scored(model, 0)


def xlm_roberta_pieces(model: SentencePieceModel, settings: Settings) -> Pieces:
    """Four special tokens instead of three, and the mask."""
    special = [[SPECIAL[role], 0.0] for role in ("bos", "pad", "eos", "unk")]
    return [*special, *_scored(model, 3), [SPECIAL["mask"], 0.0]]


def mbart_pieces(model: SentencePieceModel, settings: Settings) -> Pieces:
    """Those of XLM-R, and the languages before the mask."""
    *pieces, mask = xlm_roberta_pieces(model, settings)
    return [*pieces, *([code, 0.0] for code in MBART_LANGUAGES), mask]


def camembert_pieces(model: SentencePieceModel, settings: Settings) -> Pieces:
    """Five tokens, three of them never used, instead of the unknown one, and the mask."""
    special = [["<s>NOTUSED", 0.0], ["<pad>", 0.0], ["</s>NOTUSED", 0.0], ["<unk>", 0.0], ["<unk>NOTUSED", -100.0]]
    return [*special, *_scored(model, 1), [SPECIAL["mask"], 0.0]]


def pegasus_pieces(model: SentencePieceModel, settings: Settings) -> Pieces:
    """103 tokens more, the first two of them masks of sentences and of words. Raises ValueError for another number."""
    if settings.get("offset", 103) != 103:
        raise ValueError("tfkit reads Pegasus with `offset: 103`")
    names = ["<pad>", "</s>", "<mask_1>", "<mask_2>"]
    unused = [[f"<unk_{number}>", -100.0] for number in range(2, 103)]
    return [*([name, 0.0] for name in names), *unused, *_scored(model, 2)]


UNIGRAM_FAMILIES: Mapping[str, tuple[Callable[[SentencePieceModel, Settings], Pieces], dict[str, str]]] = {
    "albert": (albert_pieces, {**SPECIAL, "bos": "[CLS]", "eos": "[SEP]", "sep": "[SEP]", "cls": "[CLS]", "mask": "[MASK]"}),
    "camembert": (camembert_pieces, SPECIAL),
    "mbart": (mbart_pieces, SPECIAL),
    "pegasus": (pegasus_pieces, {"pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask_2>"}),
    "xlm-roberta": (xlm_roberta_pieces, SPECIAL),
}
"""By `model_type`: the pieces in the order of their ids, and the special tokens by role."""


def albert_steps(settings: Settings) -> list[dict[str, Any]]:
    """What ALBERT does to a text before the table of characters."""
    quotes = [{"type": "Replace", "pattern": {"String": mark}, "content": '"'} for mark in ("``", "''")]
    accents = [] if settings.get("keep_accents", False) else [{"type": "NFKD"}, {"type": "StripAccents"}]
    return [*quotes, *accents, *([{"type": "Lowercase"}] if settings.get("do_lower_case", True) else [])]


def around(model_type: str, roles: Mapping[str, str], settings: Settings) -> tuple[list[str], list[str]]:
    """The templates of a text and of a pair: `A`, `B` and special tokens; `B` starts the second segment of ALBERT."""
    eos, language = roles["eos"], str(settings.get("src_lang") or "en_XX")
    if model_type == "albert":
        return [roles["cls"], "A", roles["sep"]], [roles["cls"], "A", roles["sep"], "B", roles["sep"]]
    if model_type == "mbart":
        return ["A", eos, language], ["A", "B", eos, language]
    if model_type == "pegasus":
        return ["A", eos], ["A", "B", eos]
    return [roles["bos"], "A", eos], [roles["bos"], "A", eos, eos, "B", eos]
