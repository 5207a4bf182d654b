"""The callbacks of a training run on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import Diagnostic
from ..train import BudgetCheck, Callback, Reach, Step, Trainer, ValidationResult, started_rank
from ..train.log import finite
from ..view.load_report import load_report_data
from ..view.training import Lines, LivePanel


@contextmanager
def command_callbacks(directory: Path, as_json: bool) -> Iterator[list[Callback]]:
    """One callback that prints text or JSON, and one for TensorBoard if it is installed. Only rank 0 has callbacks."""
    if started_rank():
        yield []
        return
    printer = JsonLines() if as_json else LivePanel() if sys.stderr.isatty() else Lines()
    with ExitStack() as stack:
        stack.callback(printer.close)
        callbacks: list[Callback] = [printer, BudgetCheck(printer.on_reach)]
        with suppress(ImportError):
            from ..train.tensorboard import TensorBoard

            board = TensorBoard(directory / "tensorboard", printer.on_warning)
            stack.callback(board.close)
            callbacks.append(board)
        yield callbacks


class JsonLines:
    """Every event as one line of JSON on standard output."""

    def on_train_start(self, trainer: Trainer, changes: list[str]) -> None:
        pretrained = {"pretrained": load_report_data(trainer.load_report)} if trainer.load_report is not None else {}
        vectors = {"vectors": list(map(asdict, trainer.vectors))} if trainer.vectors else {}
        step = trainer.progress.step
        self._print("start", {"recipe": trainer.recipe.written(), "changes": changes, "step": step, **pretrained, **vectors})

    def on_step_end(self, step: Step) -> None:
        self._print("step", asdict(step))

    def on_validation_end(self, result: ValidationResult) -> None:
        self._print("validation", result.written)

    def on_checkpoint(self, step: int, path: Path) -> None:
        self._print("checkpoint", {"step": step, "path": str(path)})

    def on_warning(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        self._print("warning", {"diagnostics": [diagnostic.as_data() for diagnostic in diagnostics]})

    def on_reach(self, reach: Reach) -> None:
        self._print("reach", asdict(reach))
        if reach.warning is not None:
            self.on_warning((reach.warning,))

    def on_train_end(self, reason: str, model: Path) -> None:
        self._print("end", {"reason": reason, "model": str(model)})

    def close(self) -> None:
        """Nothing to release."""

    def _print(self, kind: str, data: dict[str, Any]) -> None:
        print(json.dumps({"kind": kind, **finite(data)}, allow_nan=False), flush=True)
