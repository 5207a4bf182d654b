"""Reads YAML or JSON text into located values, from the event stream of PyYAML's C parser.

PyYAML's own `compose` is not used: it keeps the last of two equal keys without an error, and it recurses once per level of
nesting. JSON is read as YAML after a check that it is JSON. Anchors, aliases, tags and merge keys are refused; a spec uses
`defaults` and `extends` instead.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, NoReturn

import yaml

from ..errors import Location
from ..files import open_regular, wide_encoding
from .hints import glued
from .located import INVALID, Diagnostics, Located, child_path, short
from .published import nearest_published
from .scalars import BadNumber, resolve

MAX_BYTES, MAX_DEPTH, MAX_VALUES, MAX_KEYS = 1 << 20, 40, 20_000, 1_000
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Characters that YAML forbids, and U+0085, U+2028, U+2029, which are line breaks in YAML 1.1 and text in YAML 1.2.
FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
# Directives of YAML stand at the start of lines, before the first value of a document. The time to parse them grows with the
# square of their number.
_DIRECTIVE = re.compile(r"(?:\A|^\.\.\.(?=\s)[^\n]*\n)(?:[ \t]*(?:#[^\n]*)?\r?\n)*(%\S*)", re.MULTILINE)
# JSON may write a character beyond U+FFFF as two escapes; YAML may not.
_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
# Tokens of JSON.
_STRING = r'"(?:[^"\\]|\\.)*"'
_CONSTANT = re.compile(rf"{_STRING}|(-?(?:NaN|Infinity))")
_WORD = re.compile(r"[^\s,:\[\]{}\"]+")


def read_file(path: str, diagnostics: Diagnostics) -> Located:
    """The located mapping in a file. Raises SpecError if the file cannot be read; other errors are added to `diagnostics`."""
    return read_text(read_source(path, diagnostics), path, diagnostics)


def read_source(path: str, diagnostics: Diagnostics) -> bytes:
    """The bytes of a regular file, of `/dev/stdin` or of `/dev/fd/N`, up to one more than the limit. Raises SpecError."""
    try:
        if os.path.isdir(path):
            saved = os.path.join(path, "spec.yaml")
            fix = f"its spec is {saved}" if os.path.isfile(saved) else "name a YAML or JSON file"
            diagnostics.fatal("TFK000", Location(path), "", "this is a directory", fix)
        with open_regular(path, descriptors=True) as file:
            return file.read(MAX_BYTES + 1)
    except OSError as reason:
        words = reason.strerror or str(reason)
        fix = "standard input is /dev/stdin" if path == "-" else nearest_published(path, "spec", "recipe")
        diagnostics.fatal("TFK000", Location(path), "", f"the file cannot be read: {words[0].lower()}{words[1:]}", fix)


def read_text(text: str | bytes, file: str, diagnostics: Diagnostics) -> Located:
    """Like `read_file`, for text in memory."""
    if file.lower().endswith(".json"):
        check_json(_decode(text, file, diagnostics, 0), file, diagnostics)
    root = read_value(text, file, diagnostics)
    if root is None:
        diagnostics.fatal("TFK007", Location(file), "", "the file is empty", "a spec is a mapping that starts with `tfkit: 1`")
    if not isinstance(root.value, dict):
        diagnostics.fatal("TFK007", root.location, "", f"a spec is a mapping, {root.shown}", "start with `tfkit: 1`")
    return root


def read_value(text: str | bytes, file: str, diagnostics: Diagnostics, path: str = "", shift: int = 0) -> Located | None:
    """The value of a text, None if the text is empty. `path` is the place of the value in the spec, `shift` the number of
    characters before it on its first line."""
    decoded = _decode(text, file, diagnostics, shift)
    builder = _Builder(file, diagnostics, path, shift)
    try:
        return builder.build(decoded)
    except yaml.MarkedYAMLError as error:
        if "Unicode" in str(error.problem) and _PAIR.search(decoded):
            joined = _PAIR.sub(lambda pair: pair[1] + _escape(pair[2], pair[3]), decoded)
            return read_value(joined, file, diagnostics, path, shift)
        location, message, fix = _located(error, builder, decoded, shift)
        diagnostics.fatal("TFK002", location, "", message, fix)
    except yaml.YAMLError as error:
        diagnostics.fatal("TFK002", Location(file), "", short(str(error)))


def _located(error: yaml.MarkedYAMLError, builder: _Builder, text: str, shift: int) -> tuple[Location, str, str]:
    """Place, message and fix for an error of the YAML parser."""
    lines = re.split("\r\n|\r|\n", text)
    location = builder.location(error.problem_mark or error.context_mark)
    message = f"{error.problem or 'this is not YAML'}{f' {error.context}' if error.context else ''}"
    if error.context == "while scanning a simple key" and error.context_mark is not None:
        # The parser stops at the next line, but the missing colon belongs to the key before it.
        location = builder.location(error.context_mark)
        message = "a key and its value, with `: ` between them, are expected"
    elif error.problem == "mapping values are not allowed in this context" and 1 < location.line <= len(lines):
        above = lines[location.line - 2]
        if glued(above.strip()):
            location = Location(location.file, location.line - 1, len(above) - len(above.lstrip()) + 1)
    if location.line > len(lines):
        location = Location(location.file, len(lines), len(lines[-1]) + 1 + (shift if len(lines) == 1 else 0))
    rest = lines[location.line - 1][location.column - 1 - (shift if location.line == 1 else 0) :]
    if fix := glued(rest):
        return location, _unspaced(rest), fix
    return location, message, "indent with spaces, not tabs" if rest.startswith("\t") else ""


def _unspaced(text: str) -> str:
    return f"`{short(text)}` has no space after its colon"


def _escape(high: str, low: str) -> str:
    code = 0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00)
    return f"\\U{code:08x}"


def _decode(text: str | bytes, file: str, diagnostics: Diagnostics, shift: int) -> str:
    def refuse(code: str, offset: int, message: str, fix: str = "") -> NoReturn:
        before = data[:offset].decode("utf-8", "replace")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        location = Location(file, line, column + (shift if line == 1 else 0))
        diagnostics.fatal(code, location, "", message, fix)

    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > MAX_BYTES:
        refuse("TFK001", 0, f"the file is larger than {MAX_BYTES} bytes")
    if wide := wide_encoding(data):
        refuse("TFK003", 0, f"the file is {wide.upper()}", "save it as UTF-8")
    try:
        decoded = data.decode("utf-8")
    except UnicodeDecodeError as reason:
        if isinstance(text, str):
            refuse(
                "TFK003", reason.start, "a character is half of a pair of surrogates", "decode the bytes of the text as UTF-8"
            )
        refuse("TFK003", reason.start, f"byte 0x{data[reason.start]:02x} is not UTF-8", "save the file as UTF-8")
    decoded = decoded.removeprefix("\ufeff")
    if directive := _DIRECTIVE.search(decoded):
        data = decoded.encode()
        offset, word = len(decoded[: directive.start(1)].encode()), directive[1]
        refuse("TFK005", offset, f"the directive `{short(word)}` is no part of the language", "remove it")
    bad = FORBIDDEN.search(decoded)
    if bad:
        data = decoded.encode()
        offset = len(decoded[: bad.start()].encode())
        refuse("TFK003", offset, f"the character U+{ord(bad[0]):04X} is not allowed in a spec")
    return decoded


class _Builder:
    """Builds one located value from events, with an explicit stack instead of recursion."""

    def __init__(self, file: str, diagnostics: Diagnostics, path: str, shift: int) -> None:
        self.file, self.diagnostics, self.path, self.shift = file, diagnostics, path, shift
        self.root: Located | None = None
        self.stack: list[tuple[Located, list[Located]]] = []  # a container, and in a mapping the key whose value comes next
        self.values = 0

    def location(self, place: Any) -> Location:
        return Location(self.file, place.line + 1, place.column + 1 + (0 if place.line else self.shift))

    def build(self, text: str) -> Located | None:
        documents = 0
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.NodeEvent):
                self.node(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self.close()
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self.fatal(
                        "TFK007", self.location(event.start_mark), "a second document starts here", "a file holds one spec"
                    )
        return self.root

    def fatal(self, code: str, location: Location, message: str, fix: str = "") -> NoReturn:
        self.diagnostics.fatal(code, location, self.here(), message, fix)

    def here(self) -> str:
        """The path of the next value."""
        if not self.stack:
            return self.path
        container, waiting = self.stack[-1]
        if isinstance(container.value, list):
            return child_path(container.path, len(container.value))
        return child_path(container.path, short(waiting[0].text)) if waiting else container.path

    def node(self, event: yaml.NodeEvent) -> None:
        location, path = self.location(event.start_mark), self.here()
        self.values += 1
        if self.values > MAX_VALUES:
            self.fatal("TFK001", location, f"the file holds more than {MAX_VALUES} values")
        if isinstance(event, yaml.AliasEvent):
            self.foreign(location, path, f"the alias `*{short(event.anchor or '')}` is no part of the language")
            self.put(Located(INVALID, location, path, f"*{event.anchor}"))
            return
        if event.anchor is not None:
            self.foreign(location, path, f"the anchor `&{short(event.anchor)}` is no part of the language")
        tag = getattr(event, "tag", None)
        if tag is not None:
            self.foreign(location, path, f"the tag `{short(tag)}` is no part of the language", "remove it")
        if isinstance(event, yaml.ScalarEvent):
            self.put(self.scalar(event, location, path))
            return
        if self.awaits_key():
            self.fatal("TFK006", location, "a key is a plain name, not a list or a mapping")
        if len(self.stack) >= MAX_DEPTH:
            self.fatal("TFK001", location, f"values are nested deeper than {MAX_DEPTH}")
        self.stack.append((Located({} if isinstance(event, yaml.MappingStartEvent) else [], location, path), []))

    def foreign(self, location: Location, path: str, message: str, fix: str = "use `defaults` or `extends`") -> None:
        self.diagnostics.add("TFK005", location, path, message, fix)

    def awaits_key(self) -> bool:
        return bool(self.stack) and isinstance(self.stack[-1][0].value, dict) and not self.stack[-1][1]

    def scalar(self, event: yaml.ScalarEvent, location: Location, path: str) -> Located:
        text = event.value
        if event.style or self.awaits_key():
            if not event.style and (fix := glued(text)):
                self.fatal("TFK002", location, _unspaced(text), fix)
            if text == "<<" and not event.style:
                self.foreign(location, path, "the merge key `<<` is no part of the language")
            return Located(text, location, path, text)
        try:
            return Located(resolve(text), location, path, text)
        except BadNumber as reason:
            self.diagnostics.add("TFK008", location, path, f"{reason}, `{short(text)}` is written")
            return Located(INVALID, location, path, text)

    def put(self, node: Located) -> None:
        if not self.stack:
            self.root = node
            return
        container, waiting = self.stack[-1]
        if isinstance(container.value, list):
            container.value.append(node)
        elif not waiting:
            if not isinstance(node.value, str):
                self.fatal("TFK006", node.location, "a key is a plain name")
            waiting.append(node)
        else:
            key = waiting.pop()
            self.enter(container, key, node)

    def enter(self, container: Located, key: Located, node: Located) -> None:
        first = container.value.get(key.text)
        if first is not None:
            line = f"first on line {first.key.line}" if first.key else ""
            self.diagnostics.add(
                "TFK004", key.location, container.path, f"`{short(key.text)}` is written twice, {line}", "remove one"
            )
            return
        if len(container.value) >= MAX_KEYS:
            self.fatal("TFK001", key.location, f"a mapping holds more than {MAX_KEYS} keys")
        if key.text != "<<":
            container.value[key.text] = Located(node.value, node.location, node.path, node.text, key.location)

    def close(self) -> None:
        node, _ = self.stack.pop()
        self.put(node)


class _NotFinite(ValueError):
    pass


def check_json(text: str, file: str, diagnostics: Diagnostics) -> None:
    """Raises SpecError, with the place and a fix, if a text is not JSON. The reader of values reports valid JSON that a spec
    does not allow: repeated keys, huge numbers, deep nesting."""
    try:
        json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        if text.strip():
            _report(text, error, file, diagnostics)
    except _NotFinite:
        constant = next(match for match in _CONSTANT.finditer(text) if match[1])
        message = f"`{constant[1]}` is not a number of JSON"
        diagnostics.fatal("TFK008", _location(text, constant.start(), file), "", message, "write an ordinary number")
    except (RecursionError, ValueError):  # too deep, or a number of thousands of digits: located by the reader of values
        return


def _refuse(name: str) -> None:
    raise _NotFinite


def _report(text: str, error: json.JSONDecodeError, file: str, diagnostics: Diagnostics) -> None:
    position = error.pos + len(text[error.pos :]) - len(text[error.pos :].lstrip())
    rest, before = text[position:], text[: error.pos].rstrip()
    message, fix = f"this is not JSON: {error.msg[:1].lower()}{error.msg[1:]}", ""
    # Newer Pythons point at a trailing comma, older ones at the bracket behind it.
    comma = position if rest.startswith(",") else len(before) - 1
    after = text[comma + 1 :].lstrip()
    if text[comma : comma + 1] == "," and after[:1] in ("}", "]"):
        position, message = comma, f"a comma before `{after[0]}` is not JSON"
        fix = "remove it, or name the file .yaml"
    elif rest.startswith(("//", "/*", "#")):
        message, fix = "a comment is not JSON", "remove it, or name the file .yaml"
    elif rest.startswith("'"):
        message, fix = "single quotes are not JSON", 'write "..."'
    elif error.msg.startswith("Expecting property name") and (word := _WORD.match(rest)):
        message, fix = f"`{short(word[0])}` is a key without quotes", f'write "{short(word[0])}"'
    elif error.msg.startswith("Expecting value") and (word := _WORD.match(rest)):
        message = f"`{short(word[0])}` is not a JSON value"
        fix = 'values are numbers, "text", true, false, null, lists and mappings'
    diagnostics.fatal("TFK002", _location(text, position, file), "", message, fix)


def _location(text: str, position: int, file: str) -> Location:
    return Location(file, text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position))
