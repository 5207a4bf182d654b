"""The content of `state.json` in a checkpoint: everything except tensors."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from ..files import FileModel
from .callbacks import MAX_WHOLE, Progress, Whole

SHAPES = "tensors"
"""The key of the shapes of sharded tensors, by file and name."""
_Size = Annotated[int, Field(ge=0, lt=1 << 40)]


class Scaler(FileModel):
    """The state of torch's GradScaler."""

    model_config = ConfigDict(serialize_by_alias=True)

    scale: Annotated[float, Field(gt=0, lt=3.4e38)]
    growth_factor: Annotated[float, Field(gt=1, le=1e6)]
    backoff_factor: Annotated[float, Field(gt=0, lt=1)]
    growth_interval: Annotated[int, Field(ge=1, le=MAX_WHOLE)]
    growth_tracker: Annotated[int, Field(ge=0, lt=1 << 31, alias="_growth_tracker")]


class NoScaler(FileModel):
    """The empty state of GradScaler in float32 and bfloat16."""


class State(FileModel):
    """The content of `state.json`.

    Attributes:
        progress: The progress of the run.
        digests: The digests of the inputs of the run, by name.
        scaler: The loss scaler.
        average_steps: Updates of the moving average; None without one.
        tensors: The shapes of sharded tensors, by file and name.
    """

    progress: Progress
    digests: dict[str, str]
    scaler: Scaler | NoScaler
    average_steps: Whole | None
    tensors: dict[str, dict[str, list[_Size]]] | None = None
