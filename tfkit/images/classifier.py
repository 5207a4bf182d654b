"""Classification of images: a model with its normalisation and its labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..catalogue import Catalogue
from ..data import Normalisation, check_classes, groups, read_image, read_image_facts, read_labels, roles_for
from ..errors import Diagnostic, InputError
from ..errors.arguments import check_list
from ..io import load, model_in
from ..nn.evaluating import check_results, evaluating
from ..nn.model import Model
from ..slots.node import ImageRule


@dataclass(frozen=True)
class ImageClassification:
    """The class of an image.

    Attributes:
        file: The name of the file.
        label: The most probable class.
        probability: Its probability.
        labels: All classes, in the order of the model's output.
        distribution: Their probabilities.
    """

    file: str
    label: str
    probability: float
    labels: tuple[str, ...]
    distribution: tuple[float, ...]

    @property
    def probabilities(self) -> dict[str, float]:
        """The probability of every label."""
        return dict(zip(self.labels, self.distribution, strict=True))


class ImageClassifier:
    """Classifies PNG and JPEG files. Probabilities are the softmax of the logits, in float32.

    Args:
        model: A classifier of images.
        normalisation: The mean and the standard deviation of its training images.
        labels: Its classes, in the order of its output.

    Raises:
        InputError: The model is of another kind, or the labels are not its own.
    """

    def __init__(self, model: Model, normalisation: Normalisation, labels: Sequence[str]) -> None:
        self.model, self.normalisation, self.labels = model, normalisation, tuple(labels)
        self.roles = roles_for(model.plan, "images")
        rule = model.plan.inputs[self.roles.target]
        assert isinstance(rule, ImageRule), "the roles of images are those of an input of images"
        self.rule = rule
        check_classes(model.plan, self.roles, self.labels)
        counts = {"mean": len(normalisation.mean), "std": len(normalisation.std)}
        for name, count in counts.items():
            if count not in (1, rule.channels):
                message = f"the normalisation has {count:,} numbers of `{name}`, the images have the channels {rule.channels}"
                raise InputError(Diagnostic("TFK116", message, "give one, or one for each channel"))

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        device: str | torch.device = "cpu",
        backend: Any = None,
        allow_nan: bool = False,
        catalogue: Catalogue | None = None,
    ) -> ImageClassifier:
        """Load the classifier in a directory.

        Args:
            directory: a saved model, or a run, whose best model is taken.
            device: where the model goes.
            backend: attention backend of every site; that of the saved model unless given.
            allow_nan: whether to load weights that hold NaN or infinity too.
            catalogue: where parts are looked up; all that are installed unless given.

        Returns:
            The classifier.

        Raises:
            StoreError: files are missing or damaged, or weights are NaN or infinite.
            InputError: the model does not classify images.
        """
        place = model_in(Path(directory))
        model = load(place, device=device, backend=backend, allow_nan=allow_nan, catalogue=catalogue).eval()
        roles_for(model.plan, "images")  # a model of another kind is reported before its missing files
        facts = read_image_facts(place)
        return cls(model, Normalisation(tuple(facts.mean), tuple(facts.std)), read_labels(place))

    def classify(self, files: Iterable[str | Path], *, chunk: int = 64) -> Iterator[ImageClassification]:
        """Classify files.

        Args:
            files: PNG or JPEG files of the size and the colours of the model.
            chunk: Images of a batch.

        Yields:
            The class of each image, in order.

        Raises:
            InputError: A file cannot be read or does not fit the model; the files before it are classified first. Or the
                probabilities of an image are NaN.
        """
        check_list(files, "files")
        read = ((str(file), read_image(str(file), self.rule)) for file in files)
        for group in groups(read, chunk):
            names, pixels = zip(*group, strict=True)
            distributions = self._distributions(np.stack(pixels))
            check_results(distributions, names)
            for name, distribution in zip(names, distributions.tolist(), strict=True):
                best = int(np.argmax(distribution))
                yield ImageClassification(name, self.labels[best], distribution[best], self.labels, tuple(distribution))

    def _distributions(self, pixels: Any) -> Tensor:
        """(B, C, H, W) bytes to (B, classes)."""
        images = self.normalisation(torch.from_numpy(pixels).to(torch.float32) / 255)
        with evaluating(self.model):
            logits = self.model(**{self.roles.target: images.to(self.model.device, self.model.dtype)})[self.roles.output]
        return logits.float().softmax(-1)  # type: ignore[no-any-return]
