"""From text and images to batches: files, tokenisers, corpora on disk, batches by tokens."""

from .batch_shapes import BatchShapes
from .batches import Epoch, epoch_of
from .corpus import Corpus
from .corpus_facts import FACTS, CorpusCounts, describe_counts, read_facts
from .image_directory import IMAGES, ImageFacts, image_texts, read_image_facts
from .image_files import Pixels, read_image
from .image_task import ImageTask, Normalisation, image_task
from .kinds import KINDS
from .lines import groups, lines, lines_of, rows
from .prepare import TRAIN, VALIDATION, Data, count_rows, files_of, prepare, read_data
from .prepare_images import check_images, prepare_images
from .roles import Roles, check_ids, roles_of
from .tasks import NO_LABEL, Batch, Task, padded, task_of
from .tokeniser import TextTokeniser
from .tokeniser_directory import LABELS, TOKENISER_FILES, read_labels, read_tokenisers, tokeniser_texts

__all__ = [
    "FACTS",
    "IMAGES",
    "KINDS",
    "LABELS",
    "NO_LABEL",
    "TOKENISER_FILES",
    "TRAIN",
    "VALIDATION",
    "Batch",
    "Corpus",
    "CorpusCounts",
    "Data",
    "Epoch",
    "ImageFacts",
    "ImageTask",
    "Normalisation",
    "Pixels",
    "Roles",
    "BatchShapes",
    "Task",
    "TextTokeniser",
    "check_ids",
    "check_images",
    "count_rows",
    "epoch_of",
    "files_of",
    "groups",
    "image_task",
    "image_texts",
    "lines",
    "lines_of",
    "padded",
    "prepare",
    "prepare_images",
    "read_data",
    "read_facts",
    "read_image",
    "read_image_facts",
    "read_labels",
    "read_tokenisers",
    "roles_of",
    "rows",
    "task_of",
    "tokeniser_texts",
    "describe_counts",
]
