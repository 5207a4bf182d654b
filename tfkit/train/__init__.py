"""Training: from a recipe and text files to a model."""

from ..data import describe_counts
from .averaging import average_checkpoints, average_models
from .budget import BudgetCheck, Reach
from .callbacks import Callback, Progress, Step, ValidationResult
from .distributed.process_group import started_rank
from .pretrained import LoadReport
from .session import Outcome, resume, train
from .trainer import Trainer

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
    "train",
]
