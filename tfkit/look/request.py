"""What a user asks to look at: texts, images and frames, their number, and whether a model reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from math import prod

import numpy as np
import numpy.typing as npt
from numpy.lib import format

from ..data import lines
from ..errors import Diagnostic, InputError, Location
from ..files import read_bytes
from ..nn.model_plan import ModelPlan
from ..slots.node import FeatureRule, ImageRule, InputRule

MOST_INPUTS = 2
INPUTS = {InputRule: ("text", "a text"), ImageRule: ("image", "an image"), FeatureRule: ("features", "frames of features")}
"""By rule of an input: the option that gives it, and its name."""


@dataclass(frozen=True)
class Request:
    """What a model reads, and what is kept of the run.

    Attributes:
        text: The text; None for a model that reads none. Texts for one image have tabs between them.
        target: The translation or the continuation; None: the model generates it.
        image: A PNG or JPEG file.
        features: A `.npy` file of frames (L, size), for instance a log-mel spectrogram.
        sites: Attention sites, by name or pattern; all if empty.
        beams: The beams of the search; 1 is greedy.
        tokens: New tokens at most, of a continuation.
        max_tokens: The limit of tokens of each side. Longer texts are cut, and a notice says so.
    """

    text: str | None = None
    target: str | None = None
    image: str | None = None
    features: str | None = None
    sites: tuple[str, ...] = ()
    beams: int = 5
    tokens: int = 20
    max_tokens: int = 256


def check_given(plan: ModelPlan, request: Request) -> None:
    """Raises InputError unless a model reads what a request gives."""
    kinds = [type(rule) for rule in plan.inputs.values()]
    if len(kinds) > MOST_INPUTS:
        message = f"`{plan.name}` has the inputs {', '.join(plan.inputs)}"
        rule = "one --text is given, and a saved model has one tokeniser of sources: name a model of one source"
        raise InputError(Diagnostic("TFK107", message, rule))
    read = {INPUTS[kind][0]: INPUTS[kind][1] for kind in kinds if not (kind is InputRule and FeatureRule in kinds)}
    given_options = {option: words for option, words in INPUTS.values() if getattr(request, option) is not None}
    for option in read.keys() - given_options.keys():
        message = f"`{plan.name}` reads {read[option]}, and none was given"
        raise InputError(Diagnostic("TFK107", message, f"write --{option}" + ("" if option == "text" else " FILE")))
    for option in given_options.keys() - read.keys():
        raise InputError(Diagnostic("TFK107", f"`{plan.name}` does not read {given_options[option]}", f"leave --{option} out"))
    decodes = any(name not in plan.undecodable for name, rule in plan.inputs.items() if isinstance(rule, InputRule))
    if request.target is not None and not decodes:
        raise InputError(Diagnostic("TFK107", f"`{plan.name}` generates no text and has no target", "leave --target out"))


def features_in(file: str) -> npt.NDArray[np.float32]:
    """The frames (L, size) in a `.npy` file. Raises InputError if it has none."""
    try:
        data = read_bytes(file)
        stream = BytesIO(data)
        if (version := format.read_magic(stream)) not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version} of the format is unknown")
        read_header = format.read_array_header_1_0 if version == (1, 0) else format.read_array_header_2_0
        shape, columns_first, dtype = read_header(stream)
    except Exception as reason:  # the header is a text of Python, whose parser raises many kinds of errors
        words = " ".join(str(getattr(reason, "strerror", None) or reason).split())[:200]
        message = f"{file} cannot be read as .npy: {words}"
        raise InputError(Diagnostic("TFK107", message, "write it with numpy.save(FILE, frames), (length, features)")) from None
    if len(shape) != 2 or dtype.kind != "f" or not all(type(size) is int and size > 0 for size in shape):
        message = f"{file} holds {str(dtype)[:60]} {str(shape)[:60]}"
        raise InputError(Diagnostic("TFK107", message, "one array of real numbers (length, features) is needed"))
    numbers = data[stream.tell() :]
    if len(numbers) != prod(shape) * dtype.itemsize:
        message = f"{file} has {len(numbers):,} bytes of numbers, and its header says {prod(shape) * dtype.itemsize:,}"
        raise InputError(Diagnostic("TFK107", message, "is the file complete?"))
    read_only = np.frombuffer(numbers, dtype).reshape(shape, order="F" if columns_first else "C")
    with np.errstate(over="ignore"):
        frames = np.array(read_only, np.float32, order="C")
    if others := int((~np.isfinite(frames)).sum()):
        message = f"{file} holds {others:,} numbers that are NaN, infinite or beyond float32"
        raise InputError(Diagnostic("TFK107", message, "write finite numbers"))
    return frames


MOST_TEXTS = 32
"""The largest number of texts of a page."""
MOST_CHARACTERS = 20_000
"""Of a text, and of a target. They are cut to `max_tokens` after all of them were split."""


def texts_in(file: str) -> list[str]:
    """The lines of a file, gzip or plain, as texts.

    Args:
        file: At most `MOST_TEXTS` lines, none of them empty.

    Raises:
        InputError: the file cannot be read, has no line, an empty line, or too many.
    """
    texts = list(islice(lines(file), MOST_TEXTS + 1))
    if not texts:
        raise InputError(Diagnostic("TFK103", f"{file} has no line", "write one text per line"))
    for number, text in enumerate(texts, 1):
        if not text.strip():
            fix = "remove the line, or write a text there"
            raise InputError(Diagnostic("TFK103", "the line is empty", fix, location=Location(file, number)))
    if len(texts) > MOST_TEXTS:
        fix = f"name a file with fewer lines: head -n {MOST_TEXTS} {file} > shorter.txt"
        raise InputError(Diagnostic("TFK161", f"{file} has more than {MOST_TEXTS} lines, the most texts of a page", fix))
    return texts


def with_targets(texts: str | Sequence[str] | None, targets: str | Sequence[str] | None) -> list[tuple[str | None, str | None]]:
    """Each text with its target.

    Args:
        texts: One text or several; None: the model reads something else.
        targets: One target for each text; None: the model generates them.

    Returns:
        Pairs of text and target.

    Raises:
        InputError: there are too many texts, one is too long, or the number of targets is another.
    """
    read = [texts] if texts is None or isinstance(texts, str) else list(texts)
    written = [targets] if isinstance(targets, str) else [None] * len(read) if targets is None else list(targets)
    if not 1 <= len(read) <= MOST_TEXTS:
        raise InputError(Diagnostic("TFK161", f"{len(read)} texts are given", f"a page has 1 to {MOST_TEXTS} texts"))
    if len(read) != len(written):
        message = f"the number of texts is {len(read)}, that of targets {len(written)}"
        raise InputError(Diagnostic("TFK102", message, "give one target for each text, in the same order, or none"))
    for text in (*read, *written):
        if text is not None and len(text) > MOST_CHARACTERS:
            message = f"a text has {len(text):,} characters, and at most {MOST_CHARACTERS:,} are read"
            raise InputError(Diagnostic("TFK161", message, "shorten it: a page shows the first tokens"))
    return list(zip(read, written, strict=True))
