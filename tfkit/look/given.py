"""What is given to look at, and whether it is what a model reads."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from math import prod

import numpy as np
import numpy.typing as npt
from numpy.lib import format

from ..errors import Diagnostic, InputError
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
    given = {option: words for option, words in INPUTS.values() if getattr(request, option) is not None}
    for option in read.keys() - given.keys():
        message = f"`{plan.name}` reads {read[option]}, and none was given"
        raise InputError(Diagnostic("TFK107", message, f"write --{option}" + ("" if option == "text" else " FILE")))
    for option in given.keys() - read.keys():
        raise InputError(Diagnostic("TFK107", f"`{plan.name}` does not read {given[option]}", f"leave --{option} out"))
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
    found = np.frombuffer(numbers, dtype).reshape(shape, order="F" if columns_first else "C")
    return np.ascontiguousarray(found, np.float32)
