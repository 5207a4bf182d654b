"""Pages and pictures: attention weights, probabilities of tokens and beams of one run of a model; its position schemes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names
from .observation import Beam, Ends, Observation, Picture, Prediction, SiteWeights

if TYPE_CHECKING:
    from .figure import AttentionFigure, attention
    from .given import Request
    from .observe import observe
    from .positions_figure import PositionsFigure, positions

__all__ = [
    "AttentionFigure",
    "Beam",
    "Ends",
    "Observation",
    "Picture",
    "PositionsFigure",
    "Prediction",
    "Request",
    "SiteWeights",
    "attention",
    "observe",
    "positions",
]

_HOMES = {
    "tfkit.look.figure": ("AttentionFigure", "attention"),
    "tfkit.look.given": ("Request",),
    "tfkit.look.observe": ("observe",),
    "tfkit.look.positions_figure": ("PositionsFigure", "positions"),
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES, __all__)
