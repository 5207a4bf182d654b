"""The files of a new plugin, and writing them."""

from __future__ import annotations

import keyword
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from ..catalogue import Catalogue
from ..errors import Diagnostic, StoreError
from ..files import make_draft, replace_directory, umask
from ..hooks import SLOTS
from ..slots.options import CONTRACT

FILES = Path(__file__).parent / "files"
LONGEST = 60
"""The largest length of a name: it becomes part of file names."""
RESERVED = ("tfkit", "torch")
"""Prefixes that say that a part is one of tfkit or of PyTorch."""
_PIECE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


@dataclass(frozen=True)
class Starter:
    """A plugin to start from.

    Args:
        module: the file of its mathematics.
        equation: what it computes.
        written: how a spec names it.
        laws: whether `tfkit conformance` checks its slot; otherwise `tfkit verify` proves a model with it.
    """

    module: str
    equation: str
    written: str
    laws: bool = False


STARTERS = {
    "backend": Starter(
        "online", "attention in blocks of keys with the online softmax", "attention: {backend: acme.part}", True
    ),
    "position": Starter("slopes", "a penalty linear in the distance", "position: acme.part", True),
    "norm": Starter("rms", "x / sqrt(mean(x^2) + eps), times a weight", "norm: acme.part", True),
    "placement": Starter("wiring", "x = x + norm(f(x))", "placement: acme.part", True),
    "activation": Starter("mish", "x tanh(ln(1 + e^x))", "ffn: {activation: acme.part}", True),
    "node": Starter("gate", "x sigmoid(W x + b)", "NODE: {kind: acme.part, input: OTHER_NODE}"),
    "sublayer": Starter("convolution", "the convolution of Conformer", "sublayers: [self_attention, acme.part, ffn]"),
    "score": Starter("bounded", "q . tanh(W k)", "attention: {score: acme.part}", True),
    "cell": Starter("minimal", "the minimal gated unit", "NODE: {kind: rnn, cell: acme.part}", True),
}
"""By slot, the plugin to start from."""


@dataclass(frozen=True)
class Name:
    """The name of a part (`acme.flash`), and the names of what holds it.

    Args:
        part: the name in specs.
    """

    part: str

    @property
    def package(self) -> str:
        """The Python package: `acme_flash`."""
        return self.part.replace(".", "_")

    @property
    def distribution(self) -> str:
        """The distribution: `acme-flash`."""
        return self.package.replace("_", "-")


def check_name(text: str) -> Name:
    """The name of a part. Raises ValueError, with the rule and an example."""
    if len(text) > LONGEST:
        raise ValueError(f"`{text[:20]}...` has {len(text):,} characters, at most {LONGEST} are allowed")
    pieces = text.split(".")
    for piece in pieces:
        if keyword.iskeyword(piece):
            raise ValueError(f"`{piece}` in `{text}` is a word of Python; choose another one")
        if not _PIECE.fullmatch(piece):
            rule = "small letters a-z, digits and single underscores between them, a letter first"
            raise ValueError(f"`{text}` cannot name a part: its words have {rule}, as in `acme.flash`")
    if len(pieces) < 2:
        raise ValueError(f"`{text}` has no prefix; the names of plugins have one that says whose they are: `acme.{text}`")
    if pieces[0] in RESERVED:
        raise ValueError(f"the prefix `{pieces[0]}.` is reserved; the prefix of a plugin says whose it is: `acme.{pieces[-1]}`")
    return Name(text)


def taken(slot: str, name: Name, catalogue: Catalogue) -> str:
    """What already has a name, or an empty text."""
    registration = catalogue.registered[slot].get(name.part)
    if registration is not None:
        return f"{registration.distribution} has a {slot} `{name.part}`"
    try:
        return f"the distribution {distribution(name.distribution).name} is installed"
    except PackageNotFoundError:
        return f"Python finds another package {name.package}" if find_spec(name.package) is not None else ""


def starter_files(slot: str, name: Name) -> dict[str, str]:
    """The files of a new plugin by path."""
    starter = STARTERS[slot]
    words = {
        "HOOK": SLOTS[slot][0], "SLOT": slot, "CONTRACT": str(CONTRACT), "EQUATION": starter.equation, "MODULE": starter.module,
        "WRITTEN": starter.written, "PROOF": proof(slot, name),
    }  # fmt: skip
    files = {path.name: _filled(path.read_text(encoding="utf-8"), words) for path in sorted((FILES / "every").iterdir())}
    files |= {
        str(path.relative_to(FILES / slot)): path.read_text(encoding="utf-8")
        for path in sorted((FILES / slot).rglob("*"))
        if path.suffix in (".py", ".yaml", ".jinja")
    }
    return {_renamed(path, name): _renamed(text, name) for path, text in files.items()}


def proof(slot: str, name: Name) -> str:
    """The command that proves a part."""
    if not STARTERS[slot].laws:
        return "tfkit verify model.yaml"
    return f"tfkit conformance {'' if slot == 'backend' else f'--slot {slot} '}{name.part}"


def _filled(text: str, words: Mapping[str, str]) -> str:
    return re.sub("|".join(rf"\b{word}\b" for word in words), lambda match: words[match[0]], text)


def _renamed(text: str, name: Name) -> str:
    for old, new in (("acme.part", name.part), ("acme_part", name.package), ("acme-part", name.distribution)):
        text = text.replace(old, new)
    return text


def write_starter(slot: str, name: Name, directory: Path) -> list[str]:
    """Write a new plugin into a directory that does not exist; returns the paths of its files below it.

    Raises StoreError if the directory exists or cannot be written. Nothing is then left behind.
    """
    if os.path.lexists(directory):
        raise StoreError(Diagnostic("TFK080", f"{directory} exists", "name another directory: -o DIR"))
    if not directory.parent.is_dir():
        message = f"{directory} cannot be written: {directory.parent} is not a directory"
        fix = f"create it first: mkdir -p {directory.parent}" if not os.path.lexists(directory.parent) else ""
        raise StoreError(Diagnostic("TFK080", message, fix))
    files = starter_files(slot, name)
    draft = None
    try:
        draft = make_draft(directory)
        for path, text in files.items():
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).write_text(text, encoding="utf-8")
        draft.chmod(0o777 & ~umask())
        replace_directory(draft, directory, ())
    except (OSError, ValueError) as reason:  # ValueError: a NUL in the name
        why = getattr(reason, "strerror", None) or str(reason)
        raise StoreError(Diagnostic("TFK081", f"{directory} cannot be written: {why}")) from None
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
    return sorted(files)
