"""The best models of a run by validation score, saved as `tfkit build` saves a model."""

from __future__ import annotations

import json
from pathlib import Path

from ..catalogue import Catalogue
from ..data import image_texts, label_texts, span_texts, tokeniser_texts
from ..errors import StoreError
from ..files import write_whole
from ..io import save
from ..io.layout import BEST
from ..nn.model import Model
from .run_files import MODELS, remove_saved, saved_steps
from .run_output import RunOutput
from .step import TrainStep


class BestModels:
    """The `keeping.best` best models of a run; `progress.best_models` lists them."""

    def __init__(self, step: TrainStep, output: RunOutput, catalogue: Catalogue) -> None:
        self.step, self.output, self.catalogue = step, output, catalogue
        self.folder = output.directory / MODELS

    def add(self, model: Model, score: float) -> None:
        """Save a model if its score is among the best. The first process writes."""
        self.step.progress.best_models = self.step.processes.run_on_first(lambda: self._add(model, score))

    def _add(self, model: Model, score: float) -> list[tuple[float, int]]:
        progress, recipe = self.step.progress, self.step.recipe
        ranked = sorted([*progress.best_models, (score, progress.step)], key=lambda each: (-each[0], each[1]))
        best = ranked[: recipe.keeping.best]
        if (score, progress.step) in best:
            data = self.step.data
            texts = tokeniser_texts(data.tokenisers) | image_texts(recipe) | span_texts(data.spans)
            texts |= label_texts(data.labels, recipe.data.kind == "pairs")
            try:
                self.output.check()
                save(model, self._path(progress.step), overwrite=True, catalogue=self.catalogue, texts=texts)
            except StoreError as reason:
                self.output.failed(reason)
                return progress.best_models
        entry = {"model": self._path(ranked[0][1]).name, "metric": recipe.validation.metric, "score": ranked[0][0]}
        try:
            write_whole(self.folder / BEST, json.dumps(entry, allow_nan=False) + "\n")
        except StoreError as reason:
            self.output.failed(reason)
        return best

    def path(self) -> Path:
        """The directory of the best model, or that of the run if none is saved."""
        best = self.step.progress.best_models
        return self._path(best[0][1]) if best else self.output.directory

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def forget_missing(self) -> None:
        """Drop models without a directory from the list."""
        progress = self.step.progress
        progress.best_models = [(score, step) for score, step in progress.best_models if self._path(step).is_dir()]

    def remove_others(self) -> None:
        """Remove the models that are no longer listed. Call it only after a checkpoint with the new list: resuming from an
        older checkpoint needs the models of the older list."""
        listed = {step for _, step in self.step.progress.best_models}
        for step, path in saved_steps(self.folder).items():
            if step not in listed:
                remove_saved(path)
