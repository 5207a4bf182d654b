"""`attention(...)`: runs models on texts, and shows the runs in a notebook, as a page, or as a picture."""

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
from .observation import Observation
from .observed_run import observe_each
from .request import Request, with_targets

MOST_MODELS = 2


@dataclass(frozen=True)
class AttentionFigure:
    """The runs of one or two models on one or several texts. A notebook shows them as a page.

    Attributes:
        observations: What each run showed, with all numbers: the runs of all models on the first text, then those on the next.
        texts: The number of texts.
    """

    observations: tuple[Observation, ...]
    texts: int = 1

    def page(self, lines: bool = False) -> str:
        """The page.

        Args:
            lines: whether it opens with lines between words instead of a heat map.

        Returns:
            The HTML text, which loads nothing.
        """
        return attention_page(self.observations, self.texts, lines)

    def save(self, path: str | Path, lines: bool = False) -> list[str]:
        """Write the page, or a picture of all texts, sites and heads.

        Args:
            path: a file name that ends in `.html`, `.png` or `.svg`; without an ending it is a page. A file of this name is
                replaced.
            lines: whether lines between words are drawn instead of heat maps.

        Returns:
            Notices, for instance of characters that no installed font has.

        Raises:
            InputError: the name has another ending, the models have no attention to draw, or too much for one picture.
            BuildError: matplotlib, which draws pictures, is not installed.
            StoreError: the file cannot be written.
        """
        check_suffix(path)
        place = Path(path)
        if place.suffix not in PICTURES:
            write_whole(place, self.page(lines))
            return []
        from .pictures import draw_attention, draw_lines

        return (draw_lines if lines else draw_attention)(self.observations, self.texts, place)

    def _repr_html_(self) -> str:
        return framed(self.page(), "attention")


def attention(
    *models: str | Path,
    text: str | Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    image: str | Path | None = None,
    features: str | Path | None = None,
    sites: str | Sequence[str] = (),
    beams: int = 5,
    tokens: int = 20,
    max_tokens: int = 256,
    **place: Any,
) -> AttentionFigure:
    """Run one or two models on texts or an image, and keep their attention weights.

    Args:
        models: directories that `tfkit train` or `tfkit import` wrote.
        text: what the models read, one text or up to 32; a pair of texts, and the texts that are compared with an image, have
            tabs between them.
        target: the translation or the continuation, one for each text; the models generate it unless it is given.
        image: a PNG or JPEG file, for a model of images.
        features: a `.npy` file of frames (length, features), for a model of audio.
        sites: attention sites by name or pattern (`decoder.*.cross_attention`); all by default.
        beams: beams of the search; 1 is greedy.
        tokens: new tokens at most, of a continuation.
        max_tokens: the limit of tokens of each side; longer texts are cut, and the page says so.
        place: the keywords `device`, `backend`, `allow_nan` and `catalogue` of `tfkit.load`.

    Returns:
        The figure.

    Raises:
        StoreError: a file of a model is missing or altered.
        InputError: a model reads something else, or has no such site; or there are too many texts, or not one target for each.
    """
    if not 1 <= len(models) <= MOST_MODELS:
        raise InputError(Diagnostic("TFK073", f"{len(models)} models are named", "name one, or two to compare"))
    patterns = (sites,) if isinstance(sites, str) else tuple(sites)
    picture, frames = (None if file is None else str(file) for file in (image, features))
    requests = [
        Request(one_text, wanted, picture, frames, patterns, beams, tokens, max_tokens)
        for one_text, wanted in with_targets(text, target)
    ]
    runs = [observe_each(model, requests, **place) for model in models]
    return AttentionFigure(
        tuple(observation for on_a_text in zip(*runs, strict=True) for observation in on_a_text), len(requests)
    )
