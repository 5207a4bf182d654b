"""Text in, text out: models with their tokenisers."""

from ..io import model_in
from .classifier import Classification, Classifier
from .tagger import Tagger, Tagging
from .text_generator import Continuation, TextGenerator
from .translator import Translation, Translator

__all__ = [
    "Classification",
    "Classifier",
    "Continuation",
    "Tagger",
    "Tagging",
    "TextGenerator",
    "Translation",
    "Translator",
    "model_in",
]
