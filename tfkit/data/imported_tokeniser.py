"""Tokenisers of Hugging Face directories: the files that tfkit saves with an imported model.

A `tokenizer.json` is taken as it is. Without one, the equal tokeniser is built from the older files, by `vocabulary_files`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import Diagnostic, InputError
from ..files import TOKENISER_BYTES, TOKENISER_VALUES, Content, open_regular, parse_json, read_bytes
from .added_tokens import CONFIG, ids_of, with_added_tokens, written_tokens
from .huggingface_file import refusal
from .tokeniser import TextTokeniser
from .tokeniser_directory import JOINT, SEPARATE
from .tokeniser_file import MAX_IDS, SEQUENCES
from .vocabulary_files import BUILDERS, Files, Parts, check_count

ORIGINAL_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json",
    "merges.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "source.spm", "target.spm",
    "target_vocab.json", "chat_template.jinja",
)  # fmt: skip
"""The files of a tokeniser, which are saved byte for byte, for an export."""
FIX = "write `tokenizer.json` with transformers: `AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)`"


def read_huggingface(directory: Path, rows: int | Mapping[str, int]) -> dict[str, Content]:
    """The tokeniser files of an imported model with these vocabulary sizes, for `texts` of `tfkit.save`: what `read_tokenisers`
    reads, and the original files, whose bytes are not held. Raises InputError if there is none, or if it has parts that tfkit
    does not run, or ids beyond `rows`."""
    files = _Directory(directory, rows if isinstance(rows, int) else max(rows.values()))
    try:
        texts = _saved(files, rows)
    except InputError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as reason:  # files of JSON hold values of any type
        message = f"a part of its tokeniser files is of another type than such a file has ({type(reason).__name__})"
        raise refusal(str(directory), "", message) from None
    return texts | original_files(directory)


def _saved(files: _Directory, rows: int | Mapping[str, int]) -> dict[str, Content]:
    """What `read_tokenisers` reads, by file name."""
    texts: dict[str, Content] = {}
    for column, parts in _tokenisers(files).items():
        name = SEPARATE.get(column, JOINT)
        size = rows if isinstance(rows, int) else rows[column if column in rows else "target"]
        saved = {"roles": parts.roles, "rows": size, "tokenizer": parts.tokenizer}
        text = json.dumps(saved, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        TextTokeniser.from_json(text, files.path(parts.file))
        texts[name] = text.encode()
    return texts


def original_files(directory: Path) -> dict[str, Path]:
    """The original tokeniser files in a directory of Hugging Face, or in that of an imported model, by name. Raises InputError
    for one that is no regular file or too large."""
    files = _Directory(directory, MAX_IDS)
    return {name: files.checked(name) for name in ORIGINAL_FILES if name in files}


FIELDS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "config.json")
PIECES = ("vocab.txt", "vocab.json", "target_vocab.json", "merges.txt")
MAX_SIZES = dict.fromkeys((*FIELDS, *PIECES), 16 << 20)
"""The most bytes of files without a whole tokeniser: several times those of the largest that are published."""
MAX_LINES = 300_000
"""The most pieces or merges of one: each has a line of its own, or a key of its own in JSON."""


class _Directory(Files):
    """The files of a tokeniser. No link is followed."""

    def __init__(self, directory: Path, rows: int) -> None:
        self.directory, self.rows = directory, rows

    def __contains__(self, name: object) -> bool:
        return os.path.lexists(self.directory / str(name))

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def checked(self, name: str) -> Path:
        """The path of a regular file that is not too large."""
        path, limit = self.directory / name, MAX_SIZES.get(name, TOKENISER_BYTES)
        try:
            with open_regular(path, links=False) as file:
                size = os.fstat(file.fileno()).st_size
        except OSError as reason:
            raise self._unread(name, str(reason.strerror)) from None
        if size > limit:
            raise self._unread(name, f"it has more than {limit:,} bytes, the limit for this file")
        return path

    def _unread(self, name: str, why: str) -> InputError:
        return InputError(Diagnostic("TFK104", f"{self.directory / name} cannot be read: {why}"))

    def read(self, name: str) -> bytes:
        try:
            data = read_bytes(self.checked(name), MAX_SIZES.get(name, TOKENISER_BYTES), links=False)
        except OSError as reason:
            raise self._unread(name, str(reason.strerror)) from None
        if name.endswith(".txt") and (lines := data.count(b"\n")) > MAX_LINES:
            raise refusal(self.path(name), "", f"it has {lines:,} lines, and at most {MAX_LINES:,} are read")
        return data

    def json(self, name: str) -> dict[str, Any]:
        text = self.read(name)
        try:
            data = parse_json(text, values=MAX_LINES if name in PIECES else TOKENISER_VALUES)
        except ValueError as reason:
            raise refusal(self.path(name), "", f"it is not valid JSON: {reason}") from None
        if not isinstance(data, dict):
            raise refusal(self.path(name), "", "it is no object")
        return data


def _tokenisers(files: _Directory) -> dict[str, Parts]:
    """The tokenisers of a directory by column; one of the column `` for all."""
    config = {name: files.json(name) if name in files else {} for name in (CONFIG, "config.json")}
    settings = config[CONFIG]
    written = written_tokens(files, settings)
    model_type = str(config["config.json"].get("model_type", ""))
    if "tokenizer.json" in files and "source.spm" not in files:
        data = files.json("tokenizer.json")
        vocab = data["model"].get("vocab") if isinstance(data.get("model"), dict) else None
        check_count(files, "tokenizer.json", len(vocab) if isinstance(vocab, (dict, list)) else 0)
        for part in SEQUENCES:
            if sum(1 for _ in islice(_values(data.get(part)), MAX_PART_VALUES + 1)) > MAX_PART_VALUES:
                raise refusal(files.path("tokenizer.json"), part, f"it has more than {MAX_PART_VALUES:,} values")
        parts = with_added_tokens(files, Parts("tokenizer.json", _modern(data), written.roles()), written)
        return {"": _with_start_and_end(parts, settings)}
    for name, build in BUILDERS.items():
        if name in files:
            tokenisers = build(files, written.roles(), settings, model_type)
            return {column: with_added_tokens(files, parts, written) for column, parts in tokenisers.items()}
    message = f"{files.directory} has no tokeniser: none of tokenizer.json, {', '.join(BUILDERS)}"
    raise InputError(Diagnostic("TFK104", message, FIX))


MAX_PART_VALUES = 10_000
"""The most values of the normaliser, the splits, the templates or the decoder; those that are published have some hundred."""


def _values(data: Any) -> Iterator[Any]:
    """All values of JSON data, with those inside of others."""
    yield data
    for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _values(value)


def _modern(data: dict[str, Any]) -> dict[str, Any]:
    """A `tokenizer.json` in the format of today, without padding and truncation, which a call decides."""
    model = data.get("model")
    model = dict(model) if isinstance(model, dict) else {}
    if "type" not in model:
        vocab = model.get("vocab")
        scored, words = isinstance(vocab, list), "max_input_chars_per_word" in model
        model["type"] = "BPE" if "merges" in model else "Unigram" if scored else "WordPiece" if words else "WordLevel"
    if isinstance(merges := model.get("merges"), list):
        model["merges"] = [pair.split(" ") if isinstance(pair, str) else pair for pair in merges]
    if model.get("dropout") == 0:
        model["dropout"] = None
    parts = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    return {**dict.fromkeys(parts), **data, "model": model, "padding": None, "truncation": None}


def _with_start_and_end(parts: Parts, settings: Mapping[str, Any]) -> Parts:
    """With the post-processor that `add_bos_token` and `add_eos_token` ask for: `update_post_processor` of transformers."""
    processor = parts.tokenizer["post_processor"]
    kept = isinstance(processor, dict) and processor.get("type") in ("BertProcessing", "RobertaProcessing")
    if kept or "cls" in parts.roles or not {"add_bos_token", "add_eos_token"} & settings.keys():
        return parts
    roles = parts.roles
    used = {role: roles[role] for role in ("bos", "eos") if settings.get(f"add_{role}_token") is True and role in roles}
    ids = ids_of(parts.tokenizer) | {entry["content"]: entry["id"] for entry in parts.tokenizer["added_tokens"]}

    def template(name: str, segment: int) -> list[dict[str, Any]]:
        tokens = {role: {"SpecialToken": {"id": token, "type_id": segment}} for role, token in used.items()}
        text = {"Sequence": {"id": name, "type_id": segment}}
        return [item for item in (tokens.get("bos"), text, tokens.get("eos")) if item]

    special = {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in used.values()}
    first = template("A", 0)
    step = {"type": "TemplateProcessing", "single": first, "pair": first + template("B", 1), "special_tokens": special}
    return replace(parts, tokenizer=parts.tokenizer | {"post_processor": step})
