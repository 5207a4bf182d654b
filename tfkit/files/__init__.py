"""Small files: read with limits, written whole or not at all. No torch.

Every small file that tfkit reads back passes through here: regular files only, a size limit, a depth limit, no link followed
inside a directory that tfkit wrote.
"""

from .read import FileModel, child, open_regular, parse_json, read_bytes, read_model, read_text
from .write import umask, write_whole

__all__ = ["FileModel", "child", "open_regular", "parse_json", "read_bytes", "read_model", "read_text", "umask", "write_whole"]
