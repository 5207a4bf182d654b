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
from ..train import Callback, Step, Trainer, Validated, started_rank
from ..view.load_report import load_report_data
from ..view.training import Lines, LivePanel


@contextmanager
def watching(directory: Path, as_json: bool) -> Iterator[list[Callback]]:
    """One callback for people or for JSON, and one for TensorBoard if it is installed. Only rank 0 has callbacks."""
    if started_rank():
        yield []
        return
    shown = JsonLines() if as_json else LivePanel() if sys.stderr.isatty() else Lines()
    with ExitStack() as stack:
        stack.callback(shown.close)
        found: list[Callback] = [shown]
        with suppress(ImportError):
            from ..train.tensorboard import TensorBoard

            board = TensorBoard(directory / "tensorboard", shown.trouble)
            stack.callback(board.close)
            found.append(board)
        yield found


class JsonLines:
    """Every event as one line of JSON on standard output."""

    def began(self, trainer: Trainer, changes: list[str]) -> None:
        taken = {"pretrained": load_report_data(trainer.load_report)} if trainer.load_report is not None else {}
        step = trainer.progress.step
        self._print("began", {"recipe": trainer.recipe.written(), "changes": changes, "step": step, **taken})

    def stepped(self, step: Step) -> None:
        self._print("step", asdict(step))

    def validated(self, result: Validated) -> None:
        self._print("validation", asdict(result))

    def saved(self, step: int, path: Path) -> None:
        self._print("saved", {"step": step, "path": str(path)})

    def trouble(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        self._print("trouble", {"diagnostics": [diagnostic.as_data() for diagnostic in diagnostics]})

    def ended(self, reason: str, model: Path) -> None:
        self._print("ended", {"reason": reason, "model": str(model)})

    def close(self) -> None:
        """There is nothing to release."""

    def _print(self, kind: str, data: dict[str, Any]) -> None:
        print(json.dumps({"kind": kind, **data}), flush=True)
