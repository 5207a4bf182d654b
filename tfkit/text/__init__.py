"""Text in, text out: models together with the tokenisers that they were trained with."""

from .classifier import Classification, Classifier
from .text_generator import Continuation, TextGenerator
from .translator import Translation, Translator, model_in

__all__ = ["Classification", "Classifier", "Continuation", "TextGenerator", "Translation", "Translator", "model_in"]
