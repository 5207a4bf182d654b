"""Text in, text out: models together with the tokenisers that they were trained with."""

from ..io import model_in
from .classifier import Classification, Classifier
from .text_generator import Continuation, TextGenerator
from .translator import Translation, Translator

__all__ = ["Classification", "Classifier", "Continuation", "TextGenerator", "Translation", "Translator", "model_in"]
