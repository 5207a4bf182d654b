"""Bounded readers for untrusted files.

A reader opens without blocking, checks the opened file rather than its name, and reads no more than its limit. It raises
OSError with the reason in `strerror` for a file that it refuses, so that callers report it like a missing file.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    RootModel,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from ..errors import Diagnostic, StoreError
from ..errors.control_characters import CONTROL_OR_LINE_END

MAX_BYTES = 16 << 20
"""The size limit of a small file, in bytes, unless its reader sets another."""
MAX_DEPTH = 40
"""How deep the lists and objects of a JSON file may be nested."""
MAX_VALUES = 100_000
"""How many values a JSON file may hold, unless its reader sets another limit."""
LABELS, PAIR_LABELS = "labels.json", "pair-labels.json"
"""The classes of a classifier, in the order of its output. One of pairs of texts has the second file."""
TOKENISER_VALUES = 1_900_000
"""The same for a tokeniser: 256,000 pieces and twice as many merges are 1.8 million."""
TOKENISER_BYTES = 48 << 20
"""The size limit of a tokeniser file, in bytes."""
MAX_STRING = 4 << 20
"""How many characters a string of JSON may have: as many as the table of characters of a tokeniser."""
MAX_ESCAPES = 1_000_000
"""How many escapes a string of JSON may have; each takes 60 bytes until the string is read."""
MAX_DIGITS = 308
"""How many digits an integer of JSON may have: so many that a number of 64 bits can be as large."""
MAX_NAMED = 3
"""Errors and unknown keys that a message names, at most."""
MAX_NAME = 255
"""Bytes of the name of a file, at most."""
MAX_KEY = 80
"""Characters of a key that a message names, at most."""
_DESCRIPTOR = re.compile(r"/dev/(stdin|fd/\d+)|/proc/self/fd/\d+")
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link",
}
_BRACKET, _BRACKET_OR_COMMA = re.compile(r'["[\]{}]'), re.compile(r'["[\]{},]')
# The escape of a surrogate. A pair of surrogates is one character.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


_WIDE = ((b"\xff\xfe\0\0", "utf-32"), (b"\0\0\xfe\xff", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
"""Byte order marks and their encodings."""
DType = Literal["float64", "float32", "bfloat16", "float16"]
"""The dtypes of weights and of evaluations, by torch's names."""


def _without_controls(text: str) -> str:
    if CONTROL_OR_LINE_END.search(text):
        raise ValueError("a text without control characters and invisible ones is expected")
    return text


Line = Annotated[str, Field(max_length=500), AfterValidator(_without_controls)]
"""A name, a version or another short text of a file that tfkit reads back."""


class _OneError:
    """One error for each list and each object of values: a million errors take 1.5 GB."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _fail_fast(schema)
        return schema


def _fail_fast(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "dict", "tuple", "set", "frozenset"):
            schema["fail_fast"] = True
        for key, value in schema.items():
            if key not in ("metadata", "serialization"):
                _fail_fast(value)
    elif isinstance(schema, (list, tuple)):
        for part in schema:
            _fail_fast(part)


class FileModel(_OneError, BaseModel):
    """The content of a file that tfkit reads back: strict types, no unknown key, no NaN and no infinity."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        """Raises one error for many unknown keys."""
        many = isinstance(data, dict) and len(data) > len(cls.model_fields) + MAX_NAMED
        if many and cls.model_config.get("extra") == "forbid":
            known = {field.alias or name for name, field in cls.model_fields.items()}
            unknown = [str(key) for key in data if key not in known]
            named = ", ".join(json.dumps(key[:60], allow_nan=False) for key in unknown[:MAX_NAMED])
            facts = {"count": f"{len(unknown):,}", "named": named, "more": f"{len(unknown) - MAX_NAMED:,}"}
            raise PydanticCustomError("unknown_keys", "{count} unknown keys: {named} and {more} more", facts)
        return data


Root = TypeVar("Root")


class FileRoot(_OneError, RootModel[Root], Generic[Root]):
    """The content of a file that is a list, or an object with any keys."""


Model = TypeVar("Model", bound=BaseModel)


def open_regular(path: str | Path, *, links: bool = True, descriptors: bool = False) -> BinaryIO:
    """Open a regular file for reading.

    Args:
        path: The file.
        links: Whether the last part of the path may be a symbolic link. Inside directories that tfkit wrote it may not.
        descriptors: Whether `/dev/stdin` and `/dev/fd/N`, which the user has opened already, may be pipes.

    Raises:
        OSError: The file is missing, is not regular, or is a link where none may be.
    """
    opened = descriptors and _DESCRIPTOR.fullmatch(str(path)) is not None
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    if not opened:
        # A named pipe without a writer would block; O_NOFOLLOW refuses a link at the moment of opening.
        flags |= getattr(os, "O_NONBLOCK", 0) | (0 if links else getattr(os, "O_NOFOLLOW", 0))
    try:
        number = os.open(path, flags)
    except ValueError:  # a NUL, or a character that names of files here cannot have
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from None
    except OSError as reason:
        if reason.errno == errno.ELOOP and os.path.islink(path):
            raise OSError(errno.ELOOP, "it is a link, and no link is followed here", str(path)) from None
        if reason.errno == errno.ENXIO:  # a socket
            raise not_regular(os.stat(path).st_mode, path) from None
        raise
    try:
        mode = os.fstat(number).st_mode
        if stat.S_ISDIR(mode) or not (opened or stat.S_ISREG(mode)):
            raise not_regular(mode, path)
        # A file of the kernel, such as /proc/kmsg, has no size, and may give nothing now.
        return os.fdopen(number, "rb") if os.fstat(number).st_size else io.BufferedReader(_Sizeless(number, "rb"))
    except BaseException:
        os.close(number)
        raise


class _Sizeless(io.FileIO):
    """A file whose size is unknown. Reading raises OSError where there is nothing yet, and no end."""

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer)
        if count is None:
            raise OSError(errno.EAGAIN, "it is no file with an end, and gives nothing now")
        return count


def not_regular(mode: int, path: str | Path) -> OSError:
    """The error for a file with this mode, which is not regular."""
    kind = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
    return OSError(errno.EINVAL, f"it is {kind}, and a regular file is expected", str(path))


def read_bytes(path: str | Path, limit: int = MAX_BYTES, *, links: bool = True, descriptors: bool = False) -> bytes:
    """The bytes of a file of at most `limit` bytes. Arguments as in `open_regular`. Raises OSError."""
    with open_regular(path, links=links, descriptors=descriptors) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes, the limit for this file", str(path))
    return data


def wide_encoding(data: bytes) -> str | None:
    """The encoding that the byte order mark of UTF-16 or UTF-32 at the beginning of a file names; None without one."""
    return next((encoding for mark, encoding in _WIDE if data.startswith(mark)), None)


def read_text(path: str | Path, limit: int = MAX_BYTES, *, links: bool = True, descriptors: bool = False) -> str:
    """Read a UTF-8 text file.

    Args:
        path: the file.
        limit: the size limit, in bytes.
        links: the last part of the path may be a symbolic link.
        descriptors: `/dev/stdin` and `/dev/fd/N` may be pipes.

    Returns:
        The text.

    Raises:
        OSError: the file is missing, not regular, larger than the limit or not UTF-8.
    """
    data = read_bytes(path, limit, links=links, descriptors=descriptors)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as reason:
        raise OSError(errno.EILSEQ, f"it is not UTF-8 text: {reason.reason} at byte {reason.start}", str(path)) from None


def parse_json(text: str | bytes, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> Any:
    """Parse JSON from an untrusted source.

    Args:
        text: the JSON text; bytes are UTF-8.
        depth: how deep lists and objects may be nested.
        values: how many values lists and objects may hold, those inside of others included.

    Returns:
        The value.

    Raises:
        ValueError: the text is not JSON, is nested too deep, has too many values, NaN, infinity, an
            integer of very many digits or a repeated key.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")  # UnicodeDecodeError is a ValueError
    _check_size(text, depth, values)
    return json.loads(text, parse_constant=_refuse_constant, parse_int=_whole, parse_float=_finite, object_pairs_hook=_unique)


def parse_form(text: str, key: str, form: int, what: str) -> dict[str, Any]:
    """Parse a JSON file that states the version of its form.

    Args:
        text: the content of the file.
        key: the key that holds the version.
        form: the version that is read.
        what: what the file is, for errors.

    Returns:
        The object.

    Raises:
        ValueError: the text is not JSON, or something else, or of another version.
    """
    try:
        data = parse_json(text)
    except ValueError as reason:
        raise ValueError(f"this is no JSON: {reason}") from None
    if not isinstance(data, dict) or key not in data:
        raise ValueError(f"this is no {what}: it has no `{key}`")
    if type(data[key]) is not int or data[key] != form:
        raise ValueError(f"its form is {str(data[key])[:40]}, this tfkit reads {form}")
    return data


def _check_size(text: str, depth: int, values: int) -> None:
    """Raises ValueError for JSON that is too deep, has too many values or a lone surrogate."""
    few = sum(map(text.count, ",[{")) <= values  # an upper bound, which may count what is inside of strings
    pattern = _BRACKET if few else _BRACKET_OR_COMMA
    level = count = at = 0
    while token := pattern.search(text, at):
        at, sign = token.end(), token[0]
        if sign == '"':
            start, at = at, _end_of_string(text, at)
            if at - start > MAX_STRING + 1:
                raise ValueError(f"a text has more than {MAX_STRING:,} characters")
            if text.find("\\", start, at) >= 0:
                if text.count("\\", start, at) > MAX_ESCAPES:
                    raise ValueError(f"a string has more than {MAX_ESCAPES:,} escapes")
                if _SURROGATE.search(text, start, at):
                    _check_characters(text[start - 1 : at])
        elif sign in "]}":
            level -= 1
        else:
            count += 1
            level += sign != ","
            if level > depth:
                raise ValueError(f"lists and objects are nested more than {depth} deep")
            if count > values:
                raise ValueError(f"it holds more than {values:,} values")


def _end_of_string(text: str, at: int) -> int:
    """Where a string of JSON ends that begins before `at`: behind its quotation mark, or at the end of the text; or behind
    `MAX_ESCAPES` quotation marks. (A regular expression would take 60 bytes of memory for each escape.)"""
    for _ in range(MAX_ESCAPES + 1):
        end = text.find('"', at)
        if end < 0:
            return len(text)
        escapes = end
        while text[escapes - 1] == "\\" and escapes > at:
            escapes -= 1
        at = end + 1
        if (end - escapes) % 2 == 0:
            return at
    return at


def _check_characters(string: str) -> None:
    try:
        json.loads(string).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"a string has a lone surrogate: {string[:60]}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer has {len(digits):,} digits, and at most {MAX_DIGITS:,} are read")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:40]} is larger than any number of 64 bits")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"the key {json.dumps(name[:60], allow_nan=False)} is repeated")
        members[name] = value
    return members


def read_model(
    path: Path, model: type[Model], limit: int = MAX_BYTES, *, values: int = MAX_VALUES, links: bool = False, fix: str = ""
) -> Model:
    """The content of a JSON file as a Pydantic model.

    Args:
        path: The file.
        model: The model, a subclass of `FileModel` unless unknown keys are allowed.
        limit: The size limit, in bytes.
        values: The most values that it may hold.
        links: Whether the file may be a symbolic link.
        fix: The fix in the error if the file cannot be read.

    Raises:
        StoreError: TFK082 with the reason and the place in the file.
    """
    try:
        return model.model_validate(parse_json(read_bytes(path, limit, links=links), values=values))
    except OSError as reason:
        raise StoreError(Diagnostic("TFK082", f"{path} cannot be read: {reason.strerror}", fix)) from None
    except ValidationError as error:
        reasons = refusals(error)[:MAX_NAMED]
        raise StoreError([Diagnostic("TFK082", f"{path}: {reason}", "it was altered") for reason in reasons]) from None
    except ValueError as reason:
        raise StoreError(Diagnostic("TFK082", f"{path} is not valid JSON: {reason}", "it was altered or cut off")) from None


def refusals(error: ValidationError) -> list[str]:
    """The errors of a validation, each as `place: reason`."""
    reasons = []
    for details in error.errors(include_url=False):
        expected = "an object is expected" if details["type"] == "model_type" else details["msg"].removeprefix("Value error, ")
        place = ".".join(str(key)[:MAX_KEY] for key in details["loc"])
        reasons.append(f"{place or 'the content'}: {expected}")
    return reasons


def child(directory: Path, name: str) -> Path:
    """The path of a file in a directory, from a name that an untrusted file gives.

    Raises:
        ValueError: The name has a separator or a NUL, is `.` or `..`, or is longer than any file's, or the child is a
            symbolic link.
    """
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise ValueError(f"{json.dumps(name[:MAX_KEY], allow_nan=False)} is not the plain name of a file here")
    if len(os.fsencode(name)) > MAX_NAME:
        begin = json.dumps(name[:MAX_KEY], allow_nan=False)
        raise ValueError(f"{begin}... has {len(name):,} characters, and the name of a file at most {MAX_NAME} bytes")
    path = directory / name
    if path.is_symlink():
        raise ValueError(f"{path} is a link, and no link is followed here")
    return path
