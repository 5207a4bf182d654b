"""Text in, text out: models together with the tokenisers that they were trained with."""

from .text_generator import Continuation, TextGenerator
from .translator import Translation, Translator, model_in

__all__ = ["Continuation", "TextGenerator", "Translation", "Translator", "model_in"]
