"""Pages and pictures: attention weights, probabilities of tokens and beams of one run of a model; its position schemes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names

if TYPE_CHECKING:
    from .figure import AttentionFigure as AttentionFigure, attention as attention
    from .observation import (
        Beam as Beam,
        Ends as Ends,
        Observation as Observation,
        Picture as Picture,
        Prediction as Prediction,
        SiteWeights as SiteWeights,
    )
    from .observed_run import observe as observe
    from .positions_figure import PositionsFigure as PositionsFigure, positions as positions
    from .request import Request as Request

__getattr__, __dir__, __all__ = lazy_names(__name__)
