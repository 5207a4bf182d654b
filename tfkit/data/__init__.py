"""From text and images to batches: files, tokenisers, corpora on disk, batches by tokens."""

from ..files import LABELS, PAIR_LABELS
from .batch_shapes import BatchShapes
from .batches import Epoch, epoch_of
from .corpus import NO_LABEL, Corpus
from .corpus_facts import FACTS, CorpusCounts, describe_counts, read_facts
from .fitting import check_classes, fits, roles_for
from .image_directory import IMAGES, ImageFacts, image_facts_text, image_texts, read_image_facts
from .image_files import Pixels, read_image
from .image_task import ImageTask, Normalisation, image_task
from .imported_tokeniser import original_files, read_huggingface
from .kinds import KINDS
from .labels import check_labels
from .lines import check_list, groups, lines, lines_of, rows
from .prepare import TRAIN, VALIDATION, Data, count_rows, files_of, prepare, read_data
from .prepare_images import check_images, prepare_images
from .roles import Roles, check_ids, roles_of
from .sources import changes_of_files
from .spans import SPANS, SpanFacts, asked_questions, read_span_facts, span_texts, windows_of
from .tagged import word_pieces
from .tasks import Batch, Task, padded, task_of
from .text_frame import Frame, PairFrame
from .tokeniser import Ranges, TextTokeniser
from .tokeniser_directory import (
    TOKENISER_FILES,
    has_labels,
    label_texts,
    read_labels,
    read_tokenisers,
    reads_pairs,
    tokeniser_texts,
)

__all__ = [
    "FACTS",
    "Frame",
    "IMAGES",
    "KINDS",
    "LABELS",
    "NO_LABEL",
    "PAIR_LABELS",
    "PairFrame",
    "SPANS",
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
    "Ranges",
    "Roles",
    "SpanFacts",
    "BatchShapes",
    "Task",
    "TextTokeniser",
    "asked_questions",
    "changes_of_files",
    "check_classes",
    "check_ids",
    "check_images",
    "check_labels",
    "count_rows",
    "epoch_of",
    "fits",
    "files_of",
    "check_list",
    "groups",
    "has_labels",
    "label_texts",
    "image_task",
    "image_facts_text",
    "image_texts",
    "lines",
    "lines_of",
    "original_files",
    "padded",
    "prepare",
    "prepare_images",
    "read_data",
    "read_facts",
    "read_huggingface",
    "read_image",
    "read_image_facts",
    "read_labels",
    "read_span_facts",
    "read_tokenisers",
    "reads_pairs",
    "roles_for",
    "roles_of",
    "rows",
    "span_texts",
    "task_of",
    "tokeniser_texts",
    "windows_of",
    "word_pieces",
    "describe_counts",
]
