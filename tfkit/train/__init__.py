"""Training: from a recipe and text to a model, with nothing lost on the way."""

from ..data import told
from .averaging import average_checkpoints, average_models
from .callbacks import Progress, Step, Validated, Watcher
from .distributed.process_group import started_rank
from .pretrained import Taken
from .session import Outcome, resume, train
from .trainer import Trainer

__all__ = [
    "Outcome",
    "Progress",
    "Step",
    "Taken",
    "Trainer",
    "Validated",
    "Watcher",
    "average_checkpoints",
    "average_models",
    "resume",
    "started_rank",
    "told",
    "train",
]
