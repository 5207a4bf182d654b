"""`attention(...)`: runs models on one text, and shows the runs in a notebook, as a page, or as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import Diagnostic, InputError
from ..files import write_whole
from ..view.pages import framed
from .attention_page import attention_page
from .forms import PICTURES, check_suffix
from .given import Request
from .observation import Observation
from .observe import observe

MOST_MODELS = 2


@dataclass(frozen=True)
class AttentionFigure:
    """The runs of one or two models. A notebook shows them as a page.

    Attributes:
        observations: What each run showed, with all numbers.
    """

    observations: tuple[Observation, ...]

    def page(self) -> str:
        """The page.

        Returns:
            The HTML text, which loads nothing.
        """
        return attention_page(self.observations)

    def save(self, path: str | Path) -> None:
        """Write the page, or a picture of all heads.

        Args:
            path: a file name that ends in `.html`, `.png` or `.svg`; without an ending it is a page. A file of this name is
                replaced.

        Raises:
            InputError: the name has another ending, or the models have no attention to draw.
            BuildError: matplotlib, which draws pictures, is not installed.
            StoreError: the file cannot be written.
        """
        place = Path(path)
        check_suffix(place)
        if place.suffix not in PICTURES:
            write_whole(place, self.page())
            return
        from .attention_picture import draw_attention

        draw_attention(self.observations, place)

    def _repr_html_(self) -> str:
        return framed(self.page(), "attention")


def attention(
    *models: str | Path,
    text: str | None = None,
    target: str | None = None,
    image: str | Path | None = None,
    features: str | Path | None = None,
    sites: str | Sequence[str] = (),
    beams: int = 5,
    tokens: int = 20,
    max_tokens: int = 256,
    **place: Any,
) -> AttentionFigure:
    """Run one or two models on a text or an image, and keep their attention weights.

    Args:
        models: directories that `tfkit train` or `tfkit import` wrote.
        text: what the models read; a pair of texts, and the texts that are compared with an image, have tabs between them.
        target: the translation or the continuation; the models generate it unless it is given.
        image: a PNG or JPEG file, for a model of images.
        features: a `.npy` file of frames (length, features), for a model of audio.
        sites: attention sites by name or pattern (`decoder.*.cross_attention`); all by default.
        beams: beams of the search; 1 is greedy.
        tokens: new tokens at most, of a continuation.
        max_tokens: the limit of tokens of each side; longer texts are cut, and the page says so.
        place: the keywords `device`, `backend` and `catalogue` of `tfkit.load`.

    Returns:
        The figure.

    Raises:
        StoreError: a file of a model is missing or altered.
        InputError: a model reads something else, or has no such site.
    """
    if not 1 <= len(models) <= MOST_MODELS:
        raise InputError(Diagnostic("TFK073", f"{len(models)} models are named", "name one, or two to compare"))
    patterns = (sites,) if isinstance(sites, str) else tuple(sites)
    picture, frames = (None if file is None else str(file) for file in (image, features))
    request = Request(text, target, picture, frames, patterns, beams, tokens, max_tokens)
    return AttentionFigure(tuple(observe(model, request, **place) for model in models))
