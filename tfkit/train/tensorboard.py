"""The curves of a run as TensorBoard reads them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from ..errors import Fault
from .progress import Step, Validated
from .trainer import Trainer


class TensorBoard:
    """Writes event files; what was written after the step from which a run goes on is hidden."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._writer: SummaryWriter | None = None

    def began(self, trainer: Trainer, changes: list[str]) -> None:
        self._writer = SummaryWriter(str(self.directory), purge_step=trainer.progress.step + 1)

    def stepped(self, step: Step) -> None:
        rates = {"source": step.source_tokens, "target": step.target_tokens}
        self._add(step.step, {"train/loss": step.loss, "train/nll": step.nll, "train/perplexity": step.perplexity})
        self._add(step.step, {"train/learning_rate": step.rate, "train/gradient_norm": step.norm})
        self._add(
            step.step, {f"speed/{side}_tokens_per_second": count / step.seconds for side, count in rates.items() if count}
        )

    def validated(self, result: Validated) -> None:
        self._add(result.step, {"validation/nll": result.nll, "validation/perplexity": result.perplexity})
        self._add(result.step, {f"validation/{name}": value for name, value in result.scores.items()})

    def _add(self, step: int, values: dict[str, float]) -> None:
        if self._writer is None:
            return
        try:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        except OSError:  # a full disk must not end what the curves are about
            self._writer = None

    def saved(self, step: int, path: Path) -> None:
        if self._writer is not None:
            with suppress(OSError):
                self._writer.flush()

    def trouble(self, faults: tuple[Fault, ...]) -> None:
        pass

    def ended(self, reason: str, model: Path) -> None:
        if self._writer is not None:
            self._writer.close()
