"""Text in, text out: models with their tokenisers."""

from ..io import model_in
from .classifier import Classification, Classifier
from .text_generator import Continuation, TextGenerator
from .translator import Translation, Translator

__all__ = ["Classification", "Classifier", "Continuation", "TextGenerator", "Translation", "Translator", "model_in"]
