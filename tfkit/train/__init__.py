"""Training: from a recipe and text files to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names

if TYPE_CHECKING:
    from ..data import describe_counts as describe_counts
    from .averaging import average_checkpoints as average_checkpoints, average_models as average_models
    from .budget import BudgetCheck as BudgetCheck, Reach as Reach
    from .callbacks import Callback as Callback, Progress as Progress, Step as Step, ValidationResult as ValidationResult
    from .distributed.process_group import started_rank as started_rank
    from .distributed.tensor_parallel import tensor_parallel_plan as tensor_parallel_plan
    from .pretrained import LoadReport as LoadReport
    from .rate_finder import RateSweep as RateSweep
    from .session import Outcome as Outcome, find_rate as find_rate, resume as resume, train as train
    from .trainer import Trainer as Trainer

__getattr__, __dir__, __all__ = lazy_names(__name__)
