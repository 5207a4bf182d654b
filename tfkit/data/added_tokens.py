"""The tokens that the files beside a vocabulary add to it. They are recognised in a text before it is split.

Order, flags and ids are those of transformers 5 (`tokenization_utils_base.py`, `tokenization_utils_tokenizers.py`): first the
tokens that a file gives an id, in the order of these, then those of roles, then all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Diagnostic, InputError
from .huggingface_file import MAX_ADDED, ROLES, refusal
from .tokeniser_file import shown
from .vocabulary_files import Files, Parts, added_token

CONFIG, MAP, LISTED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
EXTRA, OLD_EXTRA = "extra_special_tokens", "additional_special_tokens"


@dataclass(frozen=True)
class Written:
    """The tokens that the files beside a vocabulary name.

    Attributes:
        numbered: Those with an id, in the order of the ids.
        file: The file that has these.
        named: Those of a role, and of other names that end in `_token`: texts, or objects with flags.
        extra: Those without a name.
        older: Those that `special_tokens_map.json` has for `additional_special_tokens` where there is no `extra`.
    """

    numbered: list[dict[str, Any]]
    file: str
    named: dict[str, Any]
    extra: list[Any]
    older: list[Any]

    def roles(self) -> dict[str, str]:
        """The special tokens by role."""
        return {role: token for role in ROLES if (token := _content(self.named.get(f"{role}_token")))}


def written_tokens(files: Files, settings: Mapping[str, Any]) -> Written:
    """What the files name; `settings` are those of `tokenizer_config.json`. Raises InputError for too many tokens."""
    if settings.get("split_special_tokens") is True:
        raise refusal(files.path(CONFIG), "split_special_tokens", "tfkit never splits a special token of a text")
    decoder = settings.get("added_tokens_decoder")
    mapped = files.json(MAP) if decoder is None and MAP in files else {}
    extra = settings.get(EXTRA) or settings.get(OLD_EXTRA) or []
    others = {}
    if isinstance(extra, dict):
        others, extra = extra, settings.get(OLD_EXTRA) or []
    extra = [*extra, *map(_special, mapped.get(EXTRA) or ())]
    older = [] if extra else [*map(_special, mapped.get(OLD_EXTRA) or ())]
    named = {**settings, **{name: _special(token) for name, token in mapped.items()}}
    named = {name: named[name] for name in named if name.endswith("_token") and _content(named[name])}
    order = [f"{role}_token" for role in ROLES]
    named = {name: named[name] for name in sorted(named, key=lambda name: order.index(name) if name in order else len(order))}
    named |= others
    file, place = (CONFIG, "added_tokens_decoder: ") if decoder is not None else (LISTED, "")
    pairs = list(decoder.items()) if decoder is not None else []
    if decoder is None and LISTED in files:
        special = {_content(token) for token in [*named.values(), *extra]}
        pairs = [
            (number, added_token(content, number, content in special) | {"normalized": content not in special})
            for content, number in files.json(LISTED).items()
        ]
    count = len(pairs) + len(named) + len(extra) + len(older)
    if count > MAX_ADDED:
        raise refusal(files.path(file), f"{place}{count:,} added tokens", f"at most {MAX_ADDED:,} are read")
    numbered = [_token(token, _number(number, files.path(file), place)) for number, token in pairs]
    return Written(sorted(numbered, key=lambda token: token["id"]), file, named, extra, older)


def with_added_tokens(files: Files, parts: Parts, written: Written) -> Parts:
    """A tokeniser with the tokens that the files name, and the roles that have a token. Raises InputError for a token that has
    no id of the model. Many directories name roles without one, which are left out."""
    entries, model = parts.tokenizer.get("added_tokens"), parts.tokenizer["model"]
    if not isinstance(model.get("vocab"), (dict, list)) or not isinstance(entries, list) or not all(map(_is_token, entries)):
        return parts  # the check of the file says what is wrong
    if len(entries) > MAX_ADDED:
        raise refusal(files.path(parts.file), "added_tokens", f"there are {len(entries):,}, and at most {MAX_ADDED:,} are read")
    ids = ids_of(parts.tokenizer)
    added = {entry["content"]: entry for entry in entries}
    if parts.closed:
        _check_closed(files, parts, written, {*ids, *added})
    whole = parts.file == "tokenizer.json"
    fixed = {*added} if whole else set()
    for token in written.numbered:
        content = token["content"]
        if whole and written.file == LISTED and content in fixed:
            continue
        number = ids.get(content, token["id"]) if whole else token["id"]
        added[content] = token | {"id": number, "special": token["special"] or content in parts.roles.values()}
        fixed.add(content)
    following = max([len(model["vocab"]), *(entry["id"] + 1 for entry in added.values())])
    named = [written.named.get(f"{role}_token", parts.roles[role]) for role in ROLES if role in parts.roles]
    named += [token for name, token in written.named.items() if name.removesuffix("_token") not in ROLES]
    tokens = [*((token, "named") for token in named), *((token, "extra") for token in written.extra)]
    for token, kind in [*tokens, *((token, "older") for token in written.older)]:
        content = _content(token)
        if content in (fixed if isinstance(token, dict) else added):
            continue
        number = ids.get(content, following)
        if kind == "older" and parts.file.endswith(".model") and content not in ids:
            message = f"transformers 5 leaves {shown(content)} out beside {parts.file}; write `{EXTRA}` in {CONFIG}"
            raise refusal(files.path(MAP), OLD_EXTRA, message)
        if number >= files.rows:
            if kind == "named":
                continue
            message = f"the token {shown(content)} would have the id {number:,}, and the model has {files.rows:,} ids"
            raise InputError(Diagnostic("TFK106", f"{files.path(CONFIG)}: {message}", "name the tokeniser of this model"))
        added[content] = _token(token, number) | ({"special": True} if kind == "named" else {})
        fixed.add(content)
        following = max(following, number + 1)
    roles = {role: token for role, token in parts.roles.items() if token in ids or token in added}
    return Parts(parts.file, {**parts.tokenizer, "added_tokens": [*added.values()]}, roles)


def _check_closed(files: Files, parts: Parts, written: Written, known: set[str]) -> None:
    """Raises InputError for a token that the vocabulary lacks, or that takes white space or whole words."""
    for token in [*written.numbered, *written.named.values(), *written.extra, *written.older]:
        flagged = isinstance(token, dict) and any(token.get(flag) for flag in ("single_word", "lstrip", "rstrip"))
        if flagged or _content(token) not in known:
            why = "takes the text beside it, which tfkit leaves" if flagged else "is none of its vocabulary"
            raise refusal(files.path(parts.file), "", f"the added token {shown(_content(token))} {why}")


def ids_of(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    """The ids of the pieces of a `tokenizer.json`."""
    vocab = tokenizer["model"]["vocab"]
    if isinstance(vocab, dict):
        return vocab
    return {piece[0]: number for number, piece in enumerate(vocab) if isinstance(piece, list) and piece}


def _is_token(entry: Any) -> bool:
    return isinstance(entry, dict) and type(entry.get("content")) is str and type(entry.get("id")) is int


def _number(written: Any, path: str, place: str) -> int:
    """The id of a token: the key of an object, or a number."""
    if not (written.isdecimal() and len(written) < 10 if place else type(written) is int):
        raise refusal(path, place.rstrip(": "), f"{shown(written)} is no id")
    return int(written)


def _content(token: Any) -> str:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _special(token: Any) -> Any:
    return {**token, "special": True} if isinstance(token, dict) else token


def _token(token: Any, number: int) -> dict[str, Any]:
    """A token in the format of `tokenizer.json`: a text is special; an object has flags, which are false unless written."""
    if isinstance(token, str):
        return added_token(token, number)
    special = token.get("special", False)
    flags = {name: token.get(name, False) for name in ("single_word", "lstrip", "rstrip")}
    flags |= {"normalized": token.get("normalized", not special), "special": special}
    return {"id": number, "content": token["content"], **flags}
