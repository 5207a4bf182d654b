"""Statistics of attention heads, and attention rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .observation import Observation, Picture, SiteWeights, Weights

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
    found = []
    for head in range(len(weights)):
        distance = None
        if distances is not None:
            start = picture.before if picture else 0
            rows = weights[head][start:, start:]
            distance = float(((rows * distances).sum(-1) / np.maximum(rows.sum(-1), 1e-12)).mean())
        found.append(HeadStatistics(float(entropy[head]), distance, float(weights[head][:, 0].mean())))
    return found


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
