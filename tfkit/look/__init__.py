"""Pages and pictures of one run of a model: attention weights, probabilities of tokens, beams."""

from .figure import AttentionFigure, attention
from .observation import Beam, Observation, Picture, Prediction, SiteWeights
from .observe import Request, observe

__all__ = [
    "AttentionFigure",
    "Beam",
    "Observation",
    "Picture",
    "Prediction",
    "Request",
    "SiteWeights",
    "attention",
    "observe",
]
