"""What can be wrong with a file: each damage puts something hostile at its path, generated from the good content."""

from __future__ import annotations

import gzip
import json
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

Damage = Callable[[Path], None]
Made = Callable[[], bytes]
"""Makes the content of a file. Few of all contents are chosen, and some take long to make."""
ESCAPE = "\x1b[31m\x1b]0;title\x07\u202e"
"""Colour, the title of a terminal, the bell, text from right to left."""
VALUES: tuple[Any, ...] = (None, True, -1, 10**30, 1.5, "", "../../x", ESCAPE, "x" * 100_000, [], {}, [[]], {"a": {"b": 1}})


def not_regular(victim: Path) -> Iterator[tuple[str, Damage]]:
    """Names at which no regular file is, or another one: `victim` belongs to another user."""

    def link(target: str) -> Damage:
        return lambda path: path.symlink_to(target)

    yield "missing", lambda path: None
    yield "directory", lambda path: path.mkdir()
    yield "named pipe", lambda path: os.mkfifo(path)
    yield "socket", _socket
    yield "link to a device", link("/dev/zero")
    yield "link to nothing", link("nothing-here")
    yield "link to itself", lambda path: path.symlink_to(path.name)
    yield "link to another file", link(str(victim / "file.json"))
    yield "link to another directory", link(str(victim))


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


NEWLINES = gzip.compress(b"\n" * (20 << 20))


def contents(good: bytes) -> Iterator[tuple[str, bytes]]:
    """Bytes of no format, and the good ones cut or repeated."""
    draw = random.Random(len(good))
    yield "empty", b""
    yield "zeros", bytes(4096)
    yield "random", draw.randbytes(4096)
    yield "not UTF-8", b"a: \xff\xfe\n"
    yield "UTF-16", "tfkit: 1\n".encode("utf-16")
    yield "escapes", f"{ESCAPE}: {ESCAPE}\n".encode()
    yield "a long line", b"x" * (2 << 20)
    yield "many lines", b"\n" * (1 << 20)
    yield "deep lists", b"[" * 100_000
    yield "deep objects", b'{"a":' * 20_000
    yield "deep blocks", b"".join(b" " * level + b"- \n" for level in range(500))
    yield "aliases", b"a: &a [1,1]\n" + b"".join(b"b%d: [*a,*a,*a]\n" % n for n in range(60))
    yield "a tag", b"!!python/object/apply:os.system ['touch hostile-was-here']\n"
    for text in (b"null", b"[]", b"{}", b"3", b'"text"', b"true", b"NaN", b"1e999"):
        yield f"only {text.decode()}", text
    for part in (0.1, 0.25, 0.5, 0.75, 0.9):
        yield f"cut at {part}", good[: int(len(good) * part)]
    yield "cut by a byte", good[:-1]
    yield "twice", good + good
    yield "behind garbage", b"\0garbage\n" + good
    yield "gzip of newlines", NEWLINES
    yield "gzip cut off", gzip.compress(good or b"x")[:-6]


def large(good: bytes, kind: str, room: int) -> Iterator[tuple[str, Made]]:
    """Much content of the right form: wide, deep, long, repeated, up to `room` bytes."""
    if kind == ".safetensors":
        yield "many tensors", lambda: next(made for what, made in tensors(good) if what == "100,000 tensors")()
        return
    count = room // 12

    def joined(start: str, item: Callable[[int], str], end: str, between: str = ",") -> Made:
        return lambda: (start + between.join(map(item, range(count))) + end).encode()

    yield "many keys", joined("{", lambda n: f'"k{n}":1', "}")
    yield "many values", joined("[", str, "]")
    yield "many lists", joined("[", lambda n: "[]", "]")
    yield "many objects", joined("[", lambda n: '{"a":1}', "]")
    yield "one key again and again", joined("{", lambda n: '"key":1', "}")
    yield "deep lists", lambda: b"[" * room
    yield "deep objects", lambda: b'{"a":' * (room // 5)
    yield "a long text", lambda: b'{"name": "' + b"x" * (room - 20) + b'"}'
    yield "a long text of wide characters", lambda: b'{"name": "' + b"x" * (room - 24) + "\U0001f600".encode() + b'"}'
    yield "a long number", lambda: b'{"name": ' + b"1" * (room - 20) + b"}"
    yield "many escapes", lambda: b'{"name": "' + b"\\n" * (room // 2 - 20) + b'"}'
    if kind == ".yaml":
        text = good.decode()
        yield "many directives", lambda: b"%TAG !a! tag:x\n" * (room // 16) + b"---\n" + good
        yield "many keys of blocks", joined("", lambda n: f"k{n}: 1", "", "\n")
        yield "many comments", lambda: good + b"#\n" * (room // 2 - len(good))
        yield (
            "many backends",
            lambda: text.replace("num_heads", f"backend: [{','.join(['sdpa'] * 9_000)}], num_heads", 1).encode(),
        )
        yield "many quotes", lambda: b"a: '" + b"''" * (room // 2 - 10) + b"'"
    else:
        data = json.loads(good)
        for place in _some_of_each_list(data):
            if isinstance(node := _at(data, place), (list, dict)) and node:
                yield f"{'.'.join(map(str, place))} 20,000 times", partial(_repeated, good, place, 20_000)
                yield f"{'.'.join(map(str, place))} wrong", partial(_repeated, good, place, room // 200, [True])


def _some_of_each_list(data: Any) -> Iterator[tuple[Any, ...]]:
    """Places, without those of the fourth and later members of a list, which are like the first three. Alike ones stand beside
    each other: where one content in three is run, each kind of place meets both of its contents."""
    alike: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for place in _places(data):
        alike.setdefault(tuple("*" if isinstance(key, int) else key for key in place), []).append(place)
    for places in alike.values():
        yield from places[:3]


def _at(data: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        data = data[key]
    return data


def _repeated(good: bytes, place: tuple[Any, ...], count: int, *members: Any) -> bytes:
    """JSON with a list or an object that holds its last member, or another, many times."""
    data = json.loads(good)
    node = _at(data, place)
    if isinstance(node, list):
        node += (members or (node[-1],)) * count
    else:
        key = next(reversed(node))
        node.update({f"{key[:20]}{n}": next(iter(members), node[key]) for n in range(count)})
    return json.dumps(data).encode()


def sparse(path: Path) -> None:
    """A file of 1 TB that takes no room."""
    with path.open("wb") as file:
        file.truncate(1 << 40)


def flips(good: bytes, most: int) -> Iterator[tuple[str, bytes]]:
    """One byte changed, at `most` places from the first to the last."""
    draw = random.Random(1)
    for at in sorted({round(n * (len(good) - 1) / max(1, most - 1)) for n in range(most)}) if good else ():
        changed = bytearray(good)
        changed[at] ^= draw.choice((1, 0x80, 0xFF, 0x20))
        yield f"byte {at} changed", bytes(changed)


def mistyped(good: bytes, most: int) -> Iterator[tuple[str, Made]]:
    """A JSON or YAML mapping with one value of another type, one key missing, one unknown, one twice."""
    write: Callable[[Any], str] = json.dumps
    try:
        data = json.loads(good)
    except ValueError:
        write = partial(yaml.safe_dump, sort_keys=False)
        data = yaml.safe_load(good)

    def made(change: Callable[..., Any], *arguments: Any) -> Made:
        return lambda: write(change(*arguments)).encode()

    places = list(_places(data))
    draw = random.Random(len(good))
    draw.shuffle(places)
    for number, place in enumerate(places[: max(1, most // 4)]):
        for value in (
            VALUES[number % len(VALUES)],
            VALUES[(number * 5 + 3) % len(VALUES)],
            VALUES[(number * 7 + 8) % len(VALUES)],
        ):
            yield f"{'.'.join(map(str, place))} = {str(value)[:20]!r}", made(_with, data, place, value)
        yield f"without {'.'.join(map(str, place))}", made(_with, data, place, None, True)
    if isinstance(data, dict):
        yield "an unknown key", made(dict, {**data, "unknown": 1})
        yield "a key with escapes", made(dict, {**data, ESCAPE: ESCAPE})
        twice = good.rstrip()[:-1] + b', "format": 9, "format": 9}' if write is json.dumps else good + good[:200]
        yield "a key twice", lambda: twice


def _places(data: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield (*before, key)
        yield from _places(value, (*before, key))


def _with(data: Any, place: tuple[Any, ...], value: Any, remove: bool = False) -> Any:
    copied = json.loads(json.dumps(data))
    node = copied
    for key in place[:-1]:
        node = node[key] if isinstance(node, list) else node[str(key)]
    last = place[-1] if isinstance(node, list) else str(place[-1])
    if remove:
        del node[last]
    else:
        node[last] = value
    return copied


def tensors(good: bytes) -> Iterator[tuple[str, Made]]:
    """A safetensors file with another header. Its digest is in a listing, so that most are refused for that; in time, too."""
    (size,) = struct.unpack("<Q", good[:8])
    header, body = json.loads(good[8 : 8 + size]), good[8 + size :]

    def made(text: bytes, claimed: int | None = None) -> Made:
        return lambda: struct.pack("<Q", len(text) if claimed is None else claimed) + text + body

    def many() -> bytes:
        empty = {f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(100_000)}
        return made(json.dumps(empty).encode())()

    name = next(key for key in header if key != "__metadata__")
    yield "a header of 2^63 bytes", made(b"{}", 1 << 63)
    yield "a header of 2^30 bytes", made(b"{}", 1 << 30)
    yield "no JSON", made(b"x" * size)
    yield "deep header", made(b"[" * 100_000)
    for what, facts in {
        "an offset outside": {"data_offsets": [0, 1 << 40]},
        "offsets turned round": {"data_offsets": [8, 0]},
        "a negative size": {"shape": [-1, 4]},
        "a huge size": {"shape": [1 << 40, 1 << 40]},
        "an unknown dtype": {"dtype": "F1"},
        "a shape of text": {"shape": "x"},
    }.items():
        yield what, made(json.dumps({**header, name: {**header[name], **facts}}).encode())
    yield "a name with escapes", made(json.dumps({**header, ESCAPE: header[name]}).encode())
    yield "100,000 tensors", many


NAMES = (
    "new\nTFK000 forged",
    "escape\x1b[31m",
    "x" * 255,
    "x" * 300,
    "\udcff\udcfe",
    "-",
    "a b",
    "%s{0}",
    "\u202eltr",
    "..",
    "a/" * 3000,
)
"""Names of files that are not there."""


def damages(good: bytes, kind: str, victim: Path, read: bool = True) -> list[tuple[str, Damage]]:
    """All damages of a file with this content. `kind` is the ending of its name.

    Of a file that is not `read` only the type, the size and one other content are damaged."""
    found: list[tuple[str, Damage]] = [*not_regular(victim), ("sparse", sparse)]
    texts: list[tuple[str, bytes | Made]] = list(contents(good))
    if not read:
        return found + [(name, _writer(data)) for name, data in texts if name in ("empty", "random", "a long line")]
    if kind == ".safetensors":
        texts += tensors(good)
    elif kind in (".json", ".yaml"):
        texts += mistyped(good, 24)
    texts += flips(good, 12)
    found += [(name, _writer(data)) for name, data in texts]
    return found


def _writer(data: bytes | Made) -> Damage:
    def write(path: Path) -> None:
        path.write_bytes(data if isinstance(data, bytes) else data())

    return write
