"""From text to batches: files, tokenisers, corpora on disk, batches by tokens."""

from .batches import Epoch, epoch_of
from .corpus import Corpus
from .lines import lines, lines_of, rows
from .prepare import Counted, Data, count_rows, files_of, prepare, read_data, told
from .roles import Roles, check_ids, roles_of
from .saved import read_tokenisers, tokeniser_texts
from .tasks import Batch, batch_of, padded
from .tokeniser import TextTokeniser

__all__ = [
    "Batch",
    "Corpus",
    "Counted",
    "Data",
    "Epoch",
    "Roles",
    "TextTokeniser",
    "batch_of",
    "check_ids",
    "count_rows",
    "epoch_of",
    "files_of",
    "lines",
    "lines_of",
    "padded",
    "prepare",
    "read_data",
    "read_tokenisers",
    "roles_of",
    "rows",
    "tokeniser_texts",
    "told",
]
