"""Text in, text out: models with their tokenisers."""

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names

if TYPE_CHECKING:
    from ..io import model_in as model_in
    from .answerer import Answer as Answer, Answerer as Answerer, Span as Span
    from .classifier import Classification as Classification, Classifier as Classifier
    from .mask_filler import Candidate as Candidate, Filling as Filling, MaskFiller as MaskFiller
    from .rescorer import Rescored as Rescored, Rescorer as Rescorer
    from .shortlist import Shortlist as Shortlist
    from .tagger import Tagger as Tagger, Tagging as Tagging
    from .text_generator import Continuation as Continuation, TextGenerator as TextGenerator
    from .translator import Translation as Translation, Translator as Translator

__getattr__, __dir__, __all__ = lazy_names(__name__)
