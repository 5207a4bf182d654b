"""What a checkpoint says about its run beside tensors, in `state.json`."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from ..files import FileModel
from .callbacks import MAX_WHOLE, Progress, Whole

SHAPES = "tensors"
"""The key of the state that lists the tensors of the shards by file, with their shapes."""
_Size = Annotated[int, Field(ge=0, lt=1 << 40)]


class Scaler(FileModel):
    """torch's scaler of the loss in float16."""

    model_config = ConfigDict(serialize_by_alias=True)

    scale: Annotated[float, Field(gt=0, lt=3.4e38)]
    growth_factor: Annotated[float, Field(gt=1, le=1e6)]
    backoff_factor: Annotated[float, Field(gt=0, lt=1)]
    growth_interval: Annotated[int, Field(ge=1, le=MAX_WHOLE)]
    growth_tracker: Annotated[int, Field(ge=0, lt=1 << 31, alias="_growth_tracker")]


class NoScaler(FileModel):
    """Nothing is scaled in float32 and bfloat16."""


class State(FileModel):
    """The `progress`, the `scaler`, the steps of the moving `average`, the `digests` of what the run began with; the shapes of
    the `tensors` by file, where these are sharded."""

    progress: Progress
    digests: dict[str, str]
    scaler: Scaler | NoScaler
    average_steps: Whole | None
    tensors: dict[str, dict[str, list[_Size]]] | None = None
