"""Text in, text out: models with their tokenisers."""

from ..io import model_in
from .answerer import Answer, Answerer, Span
from .classifier import Classification, Classifier
from .tagger import Tagger, Tagging
from .text_generator import Continuation, TextGenerator
from .translator import Translation, Translator

__all__ = [
    "Answer",
    "Answerer",
    "Classification",
    "Classifier",
    "Continuation",
    "Span",
    "Tagger",
    "Tagging",
    "TextGenerator",
    "Translation",
    "Translator",
    "model_in",
]
