"""Training: from a recipe and text files to a model."""

from typing import TYPE_CHECKING

from ..data import describe_counts
from ..lazy_names import lazy_names
from .averaging import average_checkpoints, average_models
from .budget import BudgetCheck, Reach
from .callbacks import Callback, Progress, Step, ValidationResult
from .distributed.process_group import started_rank
from .pretrained import LoadReport
from .session import Outcome, resume, train
from .trainer import Trainer

if TYPE_CHECKING:
    from .distributed.tensor_parallel import tensor_parallel_plan

__all__ = [
    "Outcome",
    "Progress",
    "Step",
    "LoadReport",
    "Trainer",
    "ValidationResult",
    "Callback",
    "BudgetCheck",
    "Reach",
    "average_checkpoints",
    "average_models",
    "resume",
    "started_rank",
    "describe_counts",
    "tensor_parallel_plan",
    "train",
]

__getattr__, __dir__ = lazy_names(__name__, {"tfkit.train.distributed.tensor_parallel": ("tensor_parallel_plan",)}, __all__)
