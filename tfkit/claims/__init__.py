"""What papers and tutorials claim about Transformers, as experiments. Each verdict is computed from stored data."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .claim import Data, Measured
    from .trained import Trained

CLAIMS = {
    "ablations": "letters",
    "activations": "letters",
    "attention_cost": "attention_cost",
    "beyond_length": "letters",
    "decoding_time": "decoding_time",
    "embedding_scale": "letters",
    "gradient_through_time": "gradient_through_time",
    "norm_gradients": "norm_gradients",
    "norm_placement": "letters",
    "norm_warm_up": "norm_warm_up",
    "position_combine": "letters",
    "quality_by_length": "recurrent",
    "quality_ko_en": "recurrent",
    "quality_to_100_letters": "recurrent",
    "scaled_scores": "scaled_scores",
    "scheduled_sampling": "letters",
    "steps_in_time": "steps_in_time",
    "token_order": "token_order",
}
"""Every claim, with its module in this package, where it has its name in capital letters."""
RESULTS = Path(__file__).with_name("results")
"""The stored data. In a clone it is a link to `bench/results/claims`."""


def claim_of(name: str) -> Measured | Trained:
    """The claim of a name of `CLAIMS`."""
    claim: Measured | Trained = getattr(import_module(f"{__package__}.{CLAIMS[name]}"), name.upper())
    return claim


def stored(name: str) -> Data | None:
    """The stored data of a claim; None if it was not run."""
    from ..files import parse_json, read_text

    place = RESULTS / f"{name}.json"
    data: Data | None = parse_json(read_text(place)) if place.exists() else None
    return data
