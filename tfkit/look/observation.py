"""What one run of a model showed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SiteWeights:
    """The attention weights of one site.

    Attributes:
        name: The name of the site, such as `encoder.0.self_attention`.
        queries: The token of each query, Q of them.
        keys: The token of each key, K of them.
        weights: (H, Q, K) weights from 0 to 1.
        itself: Whether queries and keys are positions of one sequence.
        patches: Whether they are the patches of the picture.
    """

    name: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: Weights
    itself: bool
    patches: bool = False


@dataclass(frozen=True)
class Ends:
    """The probabilities that an answer starts and that it ends at a token."""

    token: str
    start: float
    end: float


@dataclass(frozen=True)
class Prediction:
    """The probability of one token, and the most probable tokens at its place, best first."""

    token: str
    probability: float
    alternatives: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Beam:
    """Tokens with their probabilities that follow each other, and the hypotheses that continue them.

    Attributes:
        tokens: The tokens with their probabilities, given all tokens before them.
        score: The score of the hypothesis that ends here; None if none does.
        best: Whether the best hypothesis passes through here.
        children: The continuations.
    """

    tokens: tuple[tuple[str, float], ...]
    score: float | None
    best: bool
    children: tuple[Beam, ...]


@dataclass(frozen=True)
class Picture:
    """An image in patches.

    Attributes:
        pixels: (height, width, channels) bytes, with 1 or 3 channels.
        rows: Rows of patches.
        columns: Columns of patches.
        before: Positions before those of the patches, such as a class token.
    """

    pixels: npt.NDArray[np.uint8]
    rows: int
    columns: int
    before: int


@dataclass(frozen=True)
class Observation:
    """One run of a model.

    Attributes:
        model: The name of the model.
        text: What it read.
        output: What it generated, or what was given as the target; empty for a model that generates nothing.
        sites: The weights of the requested sites.
        predictions: The probability of every token that the model predicts.
        classes: For a classifier, its classes with their probabilities, best first; for a model that compares an image with
            texts, the texts.
        beams: The hypotheses of a search, as trees that share their beginnings.
        picture: The image, for a model of images.
        ends: For a model that answers questions, where the answer starts and ends.
        notices: What a reader has to know: what was cut off, or that the model has no attention.
    """

    model: str
    text: str
    output: str = ""
    sites: tuple[SiteWeights, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    classes: tuple[tuple[str, float], ...] = ()
    beams: tuple[Beam, ...] = ()
    picture: Picture | None = None
    ends: tuple[Ends, ...] = ()
    notices: tuple[str, ...] = field(default=())
