"""The page of attention: its data, and the template with its script."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..view.pages import page
from .labels import short
from .observation import Beam, Observation, Picture, SiteWeights, Weights

FEWEST_LAYERS = 2
"""A rollout through fewer layers shows nothing else than the weights of the layer."""


@dataclass(frozen=True)
class HeadStatistics:
    """Means over the queries of one head.

    Attributes:
        entropy: The entropy of the weights, in nats.
        distance: The distance between a query and the keys, weighted: in tokens, or in patches of an image. None if queries
            and keys are different sequences.
        first: The weight of the first key.
    """

    entropy: float
    distance: float | None
    first: float


def head_statistics(site: SiteWeights, picture: Picture | None = None) -> list[HeadStatistics]:
    """The statistics of each head of a site. Class tokens have no place in an image and do not count in distances."""
    picture = picture if site.patches else None
    weights = site.weights.astype(np.float64)
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    entropy = -(weights * logs).sum(-1).mean(-1)
    distances = _distances(site, picture)
    statistics = []
    for head in range(len(weights)):
        distance = None
        if distances is not None:
            start = picture.before if picture else 0
            rows = weights[head][start:, start:]
            distance = float(((rows * distances).sum(-1) / np.maximum(rows.sum(-1), 1e-12)).mean())
        statistics.append(HeadStatistics(float(entropy[head]), distance, float(weights[head][:, 0].mean())))
    return statistics


def _distances(site: SiteWeights, picture: Picture | None) -> npt.NDArray[np.float64] | None:
    if not site.itself:
        return None
    if picture is None:
        places = np.arange(len(site.keys), dtype=np.float64)[:, None]
    else:
        places = np.stack(np.divmod(np.arange(picture.rows * picture.columns), picture.columns), 1).astype(np.float64)
    difference: npt.NDArray[np.float64] = np.linalg.norm(places[:, None] - places[None], axis=-1)
    return difference


def rollouts(observation: Observation) -> list[SiteWeights]:
    """Attention rollout of every stack of which at least two layers are observed.

    With A_l the mean of the heads of layer l, the rollout is the product of (A_l + I) / 2 over the layers, the last one first
    (Abnar and Zuidema 2020, https://arxiv.org/abs/2005.00928).
    """
    stacks: dict[str, list[SiteWeights]] = {}
    for site in observation.sites:
        if site.itself:
            stacks.setdefault(site.name.partition(".")[0], []).append(site)
    return [
        SiteWeights(f"{stack}.rollout", sites[0].queries, sites[0].keys, _rollout(sites)[None], True, sites[0].patches)
        for stack, sites in stacks.items()
        if len(sites) >= FEWEST_LAYERS
    ]


def _rollout(sites: Sequence[SiteWeights]) -> Weights:
    product = np.eye(len(sites[0].keys), dtype=np.float32)
    for site in sites:
        product = (site.weights.mean(0) + np.eye(len(product), dtype=np.float32)) / 2 @ product
    return product


MOST_BYTES = 1_800_000
"""The limit of the data of a page. Sites beyond it are left out, and the page names them."""
LONGEST_TEXT, LONGEST_CHOICE = 2000, 70
"""The largest numbers of characters of a text above its run, and in the list of texts."""


def attention_page(observations: Sequence[Observation], texts: int = 1, lines: bool = False) -> str:
    """The page of the runs of one or two models on texts, of which it shows one at a time.

    Weights are stored with 8 bits, `round(255 * weight)`: one zlib stream per head, in base64, which the page decodes when it
    draws the head.

    Args:
        observations: the runs: those on the first text, one for each model, then those on the next.
        texts: the number of texts.
        lines: whether the page opens with lines between words.

    Returns:
        The HTML text.
    """
    folder = Path(__file__).parent
    models: list[dict[str, Any]] = []
    left = MOST_BYTES
    for number, observation in enumerate(observations):
        models.append(_model(observation, left // (len(observations) - number)))
        left -= _size(models[-1])
    together = len(observations) // texts
    groups = [observations[at : at + together] for at in range(0, len(observations), together)]
    names = " and ".join(dict.fromkeys(observation.model for observation in observations))
    script = (folder / "attention.js").read_text(encoding="utf-8")
    choices = [short(f"{number}. {group[0].text}", LONGEST_CHOICE) for number, group in enumerate(groups, 1)]
    return page(
        folder / "attention.html", script=script, data={"models": models, "view": "lines" if lines else "map"},
        title=f"Attention of {names}", groups=groups, choices=choices, cut=lambda text: short(text, LONGEST_TEXT),
    )  # fmt: skip


def _size(data: Any) -> int:
    """The bytes of data as JSON."""
    return len(json.dumps(data, ensure_ascii=False, allow_nan=False).encode())


def _model(observation: Observation, budget: int) -> dict[str, Any]:
    """The data of a run for the script, with as many sites as fit into `budget` bytes."""
    names: list[tuple[str, ...]] = []
    rest = _rest(observation)
    budget -= _size(rest)
    sites: list[dict[str, Any]] = []
    left_out: list[str] = []
    for site in [*observation.sites, *rollouts(observation)]:
        data = {} if left_out else _site(site, names, observation.picture)
        budget -= _size(data)
        if budget < 0:
            left_out.append(site.name)
        else:
            sites.append(data)
    notices = list(observation.notices)
    if left_out:
        listed = ", ".join(left_out[:6]) + (", ..." if len(left_out) > 6 else "")
        fix = "Choose sites with --site, or give fewer or shorter texts."
        notices.append(f"{len(left_out)} sites are not on this page, to keep it small: {listed}. {fix}")
    return {"notices": notices, "sites": sites, "names": [[short(name) for name in tokens] for tokens in names], **rest}


def _rest(observation: Observation) -> dict[str, Any]:
    """The data of a run but its sites."""
    return {
        "name": observation.model,
        "predictions": [
            {
                "token": prediction.token,
                "p": _rounded(prediction.probability),
                "other": [(name, _rounded(p)) for name, p in prediction.alternatives],
            }
            for prediction in observation.predictions
        ],
        "classes": [(name, _rounded(p)) for name, p in observation.classes],
        "ends": [
            (short(token_ends.token), _rounded(token_ends.start), _rounded(token_ends.end)) for token_ends in observation.ends
        ],
        "beams": [_beam(beam) for beam in observation.beams],
        "picture": _picture(observation.picture),
    }


def encoded(weights: Weights) -> str:
    """The weights (Q, K) of a head: bytes `round(255 * weight)`, row by row, compressed by zlib, in base64.

    Args:
        weights: numbers from 0 to 1.

    Returns:
        ASCII text.
    """
    rounded = np.rint(np.clip(weights, 0, 1) * 255).astype(np.uint8)
    return base64.b64encode(zlib.compress(rounded.tobytes(), 6)).decode()


def _site(site: SiteWeights, names: list[tuple[str, ...]], picture: Picture | None) -> dict[str, Any]:
    """The data of a site. Its tokens are the number of a list in `names`, to which new lists are added."""
    for tokens in (site.queries, site.keys):
        if tokens not in names:
            names.append(tokens)
    return {
        "name": site.name,
        "queries": names.index(site.queries),
        "keys": names.index(site.keys),
        "heads": [encoded(head) for head in site.weights],
        "itself": site.itself,
        "patches": site.patches,
        "statistics": [_statistics(statistics) for statistics in head_statistics(site, picture)],
    }


def _statistics(statistics: HeadStatistics) -> dict[str, float | None]:
    return {name: None if value is None else _rounded(value) for name, value in asdict(statistics).items()}


def _beam(beam: Beam) -> dict[str, Any]:
    return {
        "tokens": [(short(token), _rounded(p)) for token, p in beam.tokens],
        "score": None if beam.score is None else _rounded(beam.score),
        "best": beam.best,
        "children": [_beam(child) for child in beam.children],
    }


def _picture(picture: Picture | None) -> dict[str, Any] | None:
    if picture is None:
        return None
    height, width, channels = picture.pixels.shape
    pixels = base64.b64encode(zlib.compress(picture.pixels.tobytes(), 9)).decode()
    return {"height": height, "width": width, "channels": channels, "pixels": pixels, "rows": picture.rows,
            "columns": picture.columns, "before": picture.before}  # fmt: skip


def _rounded(value: float) -> float | None:
    """Four significant digits; None for a value that is not finite."""
    return float(f"{value:.4g}") if np.isfinite(value) else None
