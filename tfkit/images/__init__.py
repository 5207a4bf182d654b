"""Images in, labels out: models together with the normalisation that they were trained with."""

from .classifier import ImageClassification, ImageClassifier

__all__ = ["ImageClassification", "ImageClassifier"]
