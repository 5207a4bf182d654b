"""Small files: read with limits, written whole or not at all. No torch.

Every small file that tfkit reads back passes through here: regular files only, a size limit, a depth limit, no link followed
inside a directory that tfkit wrote.
"""

from .listing import (
    FileRecord,
    Listing,
    check_digest,
    check_files,
    check_removable,
    check_sizes,
    file_record,
    foreign,
    remove_written,
)
from .read import (
    LABELS,
    PAIR_LABELS,
    TOKENISER_BYTES,
    TOKENISER_VALUES,
    FileModel,
    FileRoot,
    child,
    open_regular,
    parse_form,
    parse_json,
    read_bytes,
    read_model,
    read_text,
    refusals,
)
from .tensors import Place, check_header, compare_tensors, not_finite, read_header, read_places, write_tensors
from .write import Content, check_writable, content_bytes, replace_file, umask, write_content, write_whole
from .write_directory import make_draft, make_folders, replace_directory

__all__ = [
    "Content",
    "FileRecord",
    "LABELS",
    "PAIR_LABELS",
    "TOKENISER_BYTES",
    "TOKENISER_VALUES",
    "FileModel",
    "FileRoot",
    "Listing",
    "Place",
    "check_digest",
    "check_files",
    "check_header",
    "check_removable",
    "check_sizes",
    "check_writable",
    "child",
    "compare_tensors",
    "content_bytes",
    "file_record",
    "foreign",
    "make_draft",
    "make_folders",
    "not_finite",
    "open_regular",
    "parse_form",
    "parse_json",
    "read_bytes",
    "read_header",
    "read_model",
    "read_places",
    "read_text",
    "refusals",
    "remove_written",
    "replace_directory",
    "replace_file",
    "umask",
    "write_content",
    "write_tensors",
    "write_whole",
]
