"""Tokenisers from files older than `tokenizer.json`: word lists, merges, and sentencepiece models.

Each builder gives the `tokenizer.json` that transformers would make from the same files (`convert_slow_tokenizer.py` and
`tokenization_*.py` of transformers 5).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import Diagnostic, InputError
from .huggingface_file import refusal
from .sentencepiece_families import M2M_LANGUAGES, MBART_LANGUAGES, SPECIAL, UNIGRAM_FAMILIES, albert_steps, around
from .sentencepiece_file import BPE, BYTE, CONTROL, UNIGRAM, USER_DEFINED, SentencePieceModel, parse_sentencepiece
from .tokeniser_file import MAX_IDS

FRAMED = ("roberta", "bart", "longformer", "led", "blenderbot", "camembert")
"""Models with the merges of GPT-2 and the special tokens of BERT."""
MERGED = (*FRAMED, "gpt2", "gptj", "gpt_neo", "gpt_neox", "opt", "codegen")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


UNUSED_PIECES = 1_000
"""So many pieces of a sentencepiece model may have no id of the model, such as those of the other language."""


class Files(Protocol):
    """The files of a directory. `read` and `json` raise InputError. `rows` is the largest vocabulary of the model."""

    rows: int

    def __contains__(self, name: object) -> bool: ...
    def path(self, name: str) -> str: ...
    def read(self, name: str) -> bytes: ...
    def json(self, name: str) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Parts:
    """A tokeniser: the name of its main file, its `tokenizer.json`, and its special tokens by role, with and without an id.
    `closed`: transformers divides its texts by rules of its own, so that it takes no token beside those of the vocabulary."""

    file: str
    tokenizer: dict[str, Any]
    roles: dict[str, str]
    closed: bool = False


def _words(files: Files, roles: dict[str, str], settings: Mapping[str, Any], model_type: str) -> dict[str, Parts]:
    """BERT: a piece on each line of `vocab.txt`."""
    roles = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"} | roles
    pieces = _text(files, "vocab.txt").split("\n")
    vocab = {piece.rstrip("\r"): number for number, piece in enumerate(pieces[: -1 if pieces[-1] == "" else None])}
    check_count(files, "vocab.txt", len(vocab))
    start, end = ([roles[role], _id(files, "vocab.txt", vocab, roles[role])] for role in ("cls", "sep"))
    tokens = {content: {"id": content, "ids": [number], "tokens": [content]} for content, number in (start, end)}

    def item(kind: str, name: Any, segment: int) -> dict[str, Any]:
        return {kind: {"id": name, "type_id": segment}}

    single = [item("SpecialToken", start[0], 0), item("Sequence", "A", 0), item("SpecialToken", end[0], 0)]
    tokenizer = _whole(
        {
            "type": "WordPiece", "unk_token": roles["unk"], "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        },
        normalizer={
            "type": "BertNormalizer", "clean_text": True, "lowercase": settings.get("do_lower_case", True),
            "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
            "strip_accents": settings.get("strip_accents"),
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        post_processor={
            "type": "TemplateProcessing", "special_tokens": tokens, "single": single,
            "pair": [*single, item("Sequence", "B", 1), item("SpecialToken", end[0], 1)],
        },
    )  # fmt: skip
    return {"": Parts("vocab.txt", tokenizer, roles)}


def _merges(files: Files, roles: dict[str, str], settings: Mapping[str, Any], model_type: str) -> dict[str, Parts]:
    """GPT-2 and RoBERTa: pieces of bytes in `vocab.json`, and `merges.txt`."""
    if model_type not in MERGED:
        raise _unknown(files, "merges.txt", model_type, MERGED)
    framed = model_type in FRAMED
    if framed:
        roles = {
            "bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>",
        } | roles  # fmt: skip
    else:
        roles = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>") | roles
    vocab = files.json("vocab.json")
    lines = _text(files, "merges.txt").split("\n")
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    step = {**BYTE_LEVEL, "add_prefix_space": bool(settings.get("add_prefix_space", False))}
    processor: dict[str, Any] | None = None
    if framed:
        cls, sep = ([roles[role], _id(files, "vocab.json", vocab, roles[role])] for role in ("cls", "sep"))
        processor = {
            "type": "RobertaProcessing", "cls": cls, "sep": sep, "trim_offsets": True,
            "add_prefix_space": step["add_prefix_space"],
        }  # fmt: skip
    elif settings.get("add_bos_token") is True:
        bos = roles["bos"]
        token = {"SpecialToken": {"id": bos, "type_id": 0}}
        sides = [[token, {"Sequence": {"id": name, "type_id": 0}}] for name in "AB"]
        ids = {bos: {"id": bos, "ids": [_id(files, "vocab.json", vocab, bos)], "tokens": [bos]}}
        processor = {"type": "TemplateProcessing", "single": sides[0], "pair": sides[0] + sides[1], "special_tokens": ids}
    tokenizer = _whole(
        _bpe(vocab, merges), pre_tokenizer=step, post_processor=processor,
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    )  # fmt: skip
    return {"": Parts("vocab.json", tokenizer, roles)}


def _pieces(name: str) -> Callable[[Files, dict[str, str], Mapping[str, Any], str], dict[str, Parts]]:
    """One sentencepiece model. Which pieces have which ids depends on the `model_type`."""

    def build(files: Files, roles: dict[str, str], settings: Mapping[str, Any], model_type: str) -> dict[str, Parts]:
        model = _model(files, name)
        if model.kind == UNIGRAM and model_type in ("t5", "mt5", "umt5"):
            return {"": _t5(files, name, model, roles, settings)}
        if model.kind == BPE and model_type in ("llama", "mistral"):
            return {"": _llama(files, name, model, roles, settings)}
        if model.kind == UNIGRAM and model_type in UNIGRAM_FAMILIES:
            return {"": _unigram(files, name, model, roles, settings, model_type)}
        if model.kind == BPE and model_type == "m2m_100" and "vocab.json" in files:
            return {"": _m2m(files, name, model, roles, settings)}
        known = ("t5", "mt5", "umt5", "llama", "mistral", *UNIGRAM_FAMILIES, "m2m_100 (with vocab.json)")
        raise _unknown(files, name, model_type, known)

    return build


def _t5(
    files: Files, name: str, model: SentencePieceModel, roles: dict[str, str], settings: Mapping[str, Any]
) -> Parts:  # fmt: skip
    roles = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"} | roles
    extra = settings.get("extra_ids", 100)
    if type(extra) is not int or not 0 <= extra <= 1000:
        raise refusal(files.path("tokenizer_config.json"), "extra_ids", "it is a number up to 1000")
    names = [f"<extra_id_{number}>" for number in range(extra - 1, -1, -1)]
    vocab: list[list[Any]] = [[piece.piece, piece.score] for piece in model.pieces] + [[token, 0.0] for token in names]
    ids = {piece: number for number, (piece, _) in enumerate(vocab)}
    tokenizer = _whole(
        {"type": "Unigram", "unk_id": model.unknown, "vocab": vocab, "byte_fallback": False},
        normalizer=_charsmap(model),
        pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, _metaspace("always")]},
        post_processor=_ended(roles["eos"], _id(files, name, ids, roles["eos"])),
        decoder=_metaspace("always"),
    )
    tokenizer["added_tokens"] = [added_token(token, ids[token]) for token in [*names, *roles.values()] if token in ids]
    return Parts(name, tokenizer, roles)


def _llama(files: Files, name: str, model: SentencePieceModel, roles: dict[str, str], settings: Mapping[str, Any]) -> Parts:
    """As `LlamaTokenizer`: no normaliser; merges from the pieces."""
    roles = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"} | roles
    vocab = {piece.piece: number for number, piece in enumerate(model.pieces)}
    skipped = {piece.piece for piece in model.pieces if piece.type in (CONTROL, USER_DEFINED, BYTE)} | {*roles.values()}
    scheme = "always" if settings.get("legacy") is True else "first"
    start = settings.get("add_bos_token") is True
    bos, eos = roles["bos"], roles["eos"]
    ids = {token: _id(files, name, vocab, token) for token in (bos, eos)}
    around = [[bos] * start, [eos] * (settings.get("add_eos_token") is True)]

    def side(text: str, segment: int) -> list[dict[str, Any]]:
        before, after = ([{"SpecialToken": {"id": token, "type_id": segment}} for token in tokens] for tokens in around)
        return [*before, {"Sequence": {"id": text, "type_id": segment}}, *after]

    tokens = {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in ids.items()}
    tokenizer = _whole(
        _bpe(vocab, _merges_of(vocab, skipped)) | {"unk_token": roles["unk"], "fuse_unk": True, "byte_fallback": True},
        pre_tokenizer=_metaspace(scheme) | {"split": False},
        post_processor={
            "type": "TemplateProcessing", "single": side("A", 0), "pair": side("A", 0) + side("B", 1), "special_tokens": tokens,
        },
        decoder={
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
    )  # fmt: skip
    control = [number for number, piece in enumerate(model.pieces) if piece.type in (CONTROL, USER_DEFINED)]
    tokenizer["added_tokens"] = [
        added_token(model.pieces[number].piece, number, special=model.pieces[number].type == CONTROL) for number in control
    ]
    return Parts(name, tokenizer, roles)


def _unigram(
    files: Files, name: str, model: SentencePieceModel, roles: dict[str, str], settings: Mapping[str, Any], model_type: str
) -> Parts:
    pieces, special = UNIGRAM_FAMILIES[model_type]
    try:
        vocab = pieces(model, settings)
    except ValueError as reason:
        raise refusal(files.path("tokenizer_config.json"), "offset", str(reason)) from None
    ids = {piece: number for number, (piece, _) in enumerate(vocab)}
    if model_type != "albert":  # transformers gives these names to the pieces
        for role in special.keys() & roles.keys():
            _id(files, name, ids, roles[role])
    roles = special | roles
    steps = albert_steps(settings) if model_type == "albert" else []
    steps += filter(None, [_charsmap(model)])
    if model_type == "pegasus":
        steps += [] if model.charsmap else [{"type": "Replace", "pattern": {"Regex": r"\n"}, "content": " "}]
        steps += [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]
    split = _metaspace("always")
    if model_type != "pegasus":
        split = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, split]}
    single, pair = around(model_type, roles, settings)
    tokenizer = _whole(
        {"type": "Unigram", "unk_id": _id(files, name, ids, roles["unk"]), "vocab": vocab, "byte_fallback": False},
        normalizer={"type": "Sequence", "normalizers": steps} if steps else None,
        pre_tokenizer=split,
        post_processor=_template(single, pair, {token: _id(files, name, ids, token) for token in single if token != "A"}),
        decoder=_metaspace("always"),
    )
    codes = MBART_LANGUAGES if model_type == "mbart" else ()
    masks = [piece for piece in ids if piece.startswith(("<mask_", "<unk_"))] if model_type == "pegasus" else []
    strips = roles["mask"] if model_type in ("camembert", "mbart") else None
    tokenizer["added_tokens"] = [
        added_token(token, ids[token]) | {"lstrip": token == strips}
        for token in dict.fromkeys([*roles.values(), *codes, *masks])
        if token in ids
    ]
    return Parts(name, tokenizer, roles)


def _m2m(files: Files, name: str, model: SentencePieceModel, roles: dict[str, str], settings: Mapping[str, Any]) -> Parts:
    """The pieces have the ids of `vocab.json`, the languages those after it."""
    listed = files.json("vocab.json")
    known = {piece.piece for piece in model.pieces if piece.type not in (CONTROL, BYTE)}
    roles = {role: token for role, token in (SPECIAL | roles).items() if token in listed}
    if missing := sorted(known - listed.keys() - {*SPECIAL.values()}):
        raise refusal(
            files.path("vocab.json"), "", f"it has no id for {len(missing):,} pieces of {name}, such as `{missing[0]}`"
        )
    vocab = {**listed, **{f"__{code}__": len(listed) + number for number, code in enumerate(M2M_LANGUAGES)}}
    order = {piece.piece: number for number, piece in enumerate(model.pieces)}
    skipped = {piece.piece for piece in model.pieces if piece.type in (CONTROL, USER_DEFINED, BYTE)} | {*SPECIAL.values()}
    language, eos = f"__{settings.get('src_lang') or 'en'}__", _special(roles, "eos", files)
    single = [language, "A", eos]
    tokenizer = _whole(
        _bpe(vocab, _merges_of(order, skipped)) | {"unk_token": _special(roles, "unk", files), "fuse_unk": True},
        normalizer=_spaces(model),
        pre_tokenizer=_metaspace("always" if model.prefix else "never"),
        post_processor=_template(
            single, [language, "A", "B", eos], {token: _id(files, "vocab.json", vocab, token) for token in (language, eos)}
        ),
        decoder=_metaspace("always" if model.prefix else "never"),
    )
    languages = list(vocab)[len(listed) :]
    tokenizer["added_tokens"] = [added_token(token, vocab[token]) for token in dict.fromkeys([*roles.values(), *languages])]
    return Parts(name, tokenizer, roles, closed=True)


def _special(roles: Mapping[str, str], role: str, files: Files) -> str:
    if role not in roles:
        raise refusal(files.path("vocab.json"), "", f"it has no piece `{SPECIAL[role]}`")
    return roles[role]


def _template(single: list[str], pair: list[str], ids: Mapping[str, int]) -> dict[str, Any]:
    """Special tokens around `A` and `B`. A pair of BERT's form, `A [SEP] B [SEP]`, has two segments."""
    segments = pair[-1] == pair[-3] and pair[-2] == "B" and pair[-4] == "A"

    def items(names: list[str]) -> list[dict[str, Any]]:
        second = names.index("B") if segments and "B" in names else len(names)
        return [
            {"Sequence" if name in "AB" else "SpecialToken": {"id": name, "type_id": int(place >= second)}}
            for place, name in enumerate(names)
        ]

    special = {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in ids.items()}
    return {"type": "TemplateProcessing", "single": items(single), "pair": items(pair), "special_tokens": special}


def _marian(files: Files, roles: dict[str, str], settings: Mapping[str, Any], model_type: str) -> dict[str, Parts]:
    """Marian: the pieces of two sentencepiece models, with the ids of `vocab.json`."""
    roles = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"} | roles
    lists = {"source": "vocab.json", "target": "target_vocab.json" if settings.get("separate_vocabs") else "vocab.json"}
    return {column: _marian_side(files, f"{column}.spm", listed, roles) for column, listed in lists.items()}


def _marian_side(files: Files, name: str, listed: str, roles: dict[str, str]) -> Parts:
    model, vocab = _model(files, name), files.json(listed)
    if model.kind != UNIGRAM:
        raise refusal(files.path(name), "", "the pieces are not those of a unigram model")
    order: list[str | None] = [None] * len(vocab)
    for piece, number in vocab.items():
        if type(number) is not int or not 0 <= number < len(order) or order[number] is not None:
            raise refusal(files.path(listed), "", f"{len(vocab):,} pieces have the ids from 0, each once")
        order[number] = piece
    scores = {entry.piece: entry.score for entry in model.pieces if entry.type not in (CONTROL, BYTE)}
    lowest = min(scores.values()) - 10.0
    # A piece of the other model only. It costs more than unknown characters, so that no known piece gives way to it.
    pieces = [[piece, scores.get(piece, lowest * max(1, len(piece)))] for piece in map(str, order)]
    codes = [piece for piece in vocab if piece.startswith(">>") and piece.endswith("<<")]
    tokenizer = _whole(
        {"type": "Unigram", "unk_id": _id(files, listed, vocab, roles["unk"]), "vocab": pieces, "byte_fallback": False},
        normalizer=_spaces(model),
        pre_tokenizer=_metaspace("always" if model.prefix else "never"),
        post_processor=_ended(roles["eos"], _id(files, listed, vocab, roles["eos"])),
        decoder=_metaspace("always" if model.prefix else "never"),
    )
    tokenizer["added_tokens"] = [
        added_token(token, vocab[token], special=token not in codes) for token in [*codes, *roles.values()] if token in vocab
    ]
    return Parts(name, tokenizer, roles, closed=True)


BUILDERS: Mapping[str, Callable[[Files, dict[str, str], Mapping[str, Any], str], dict[str, Parts]]] = {
    "source.spm": _marian,
    "spiece.model": _pieces("spiece.model"),
    "tokenizer.model": _pieces("tokenizer.model"),
    "sentencepiece.bpe.model": _pieces("sentencepiece.bpe.model"),
    "merges.txt": _merges,
    "vocab.txt": _words,
}
"""By the file that decides, in the order in which they are looked for."""


def _model(files: Files, name: str) -> SentencePieceModel:
    try:
        return parse_sentencepiece(files.read(name), min(files.rows + UNUSED_PIECES, MAX_IDS))
    except ValueError as reason:
        raise refusal(files.path(name), "", f"it is no sentencepiece model: {reason}") from None


def check_count(files: Files, name: str, count: int) -> None:
    """Raises InputError for more pieces than the model has ids, before a tokeniser is made of them."""
    if count > files.rows:
        message = f"{files.path(name)}: the model has {files.rows:,} ids, and the tokeniser has {count:,}"
        raise InputError(Diagnostic("TFK106", message, "name the tokeniser of this model"))


def _text(files: Files, name: str) -> str:
    try:
        return files.read(name).decode("utf-8")
    except UnicodeDecodeError as reason:
        raise refusal(files.path(name), "", f"it is not UTF-8 text: {reason.reason} at byte {reason.start}") from None


def _id(files: Files, name: str, vocab: Mapping[str, Any], token: str) -> Any:
    if token not in vocab:
        raise refusal(files.path(name), "", f"it has no piece `{token}`")
    return vocab[token]


def _unknown(files: Files, name: str, model_type: str, known: tuple[str, ...]) -> InputError:
    message = f"tfkit reads this file for the `model_type` {', '.join(known)}, and config.json has `{model_type}`; "
    return refusal(files.path(name), "", f"{message}save `tokenizer.json` with transformers")


def _whole(model: dict[str, Any], **steps: Any) -> dict[str, Any]:
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {"version": "1.0", **parts, "added_tokens": [], **steps, "model": model}


def _bpe(vocab: Mapping[str, Any], merges: list[list[str]]) -> dict[str, Any]:
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": dict(vocab), "merges": merges,
    }  # fmt: skip


def _merges_of(vocab: Mapping[str, int], skipped: set[str]) -> list[list[str]]:
    """All pairs of pieces that are a piece, in the order of that piece."""
    merges = []
    for piece, number in vocab.items():
        if piece in skipped:
            continue
        pairs = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        pairs = [pair for pair in pairs if pair[0] in vocab and pair[1] in vocab and not skipped & {*pair}]
        merges += [(number, *pair) for pair in sorted(pairs, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))]
    merges.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])))
    return [[left, right] for _, left, right in merges]


def _metaspace(scheme: str) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}


def _charsmap(model: SentencePieceModel) -> dict[str, Any] | None:
    table = base64.b64encode(model.charsmap).decode()
    return {"type": "Precompiled", "precompiled_charsmap": table} if table else None


def _spaces(model: SentencePieceModel) -> dict[str, Any]:
    """The normaliser of sentencepiece: its table of characters, and single spaces."""
    single = [
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]
    return {"type": "Sequence", "normalizers": [*filter(None, [_charsmap(model)]), *(single if model.one_space else [])]}


def _ended(end: str, number: Any) -> dict[str, Any]:
    """A text and its end token; a pair has one after each text."""
    token = {"SpecialToken": {"id": end, "type_id": 0}}
    first, second = ([{"Sequence": {"id": name, "type_id": 0}}, token] for name in "AB")
    special = {end: {"id": end, "ids": [number], "tokens": [end]}}
    return {"type": "TemplateProcessing", "single": first, "pair": first + second, "special_tokens": special}


def added_token(content: str, number: Any, special: bool = True) -> dict[str, Any]:
    """A token in the format of `tokenizer.json`."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": content, **flags, "special": special}
