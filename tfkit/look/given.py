"""What is given to look at, and whether it is what a model reads."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from tokenize import TokenError

import numpy as np
import numpy.typing as npt

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
        found = np.load(BytesIO(read_bytes(file)), allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, TokenError) as reason:
        message = f"{file} cannot be read as .npy: {reason}"
        raise InputError(Diagnostic("TFK107", message, "write it with numpy.save(FILE, frames), (length, features)")) from None
    if not isinstance(found, np.ndarray) or found.ndim != 2 or found.dtype.kind != "f":
        shown = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else "several arrays"
        raise InputError(
            Diagnostic("TFK107", f"{file} holds {shown}", "one array of real numbers (length, features) is needed")
        )
    return found.astype(np.float32)
