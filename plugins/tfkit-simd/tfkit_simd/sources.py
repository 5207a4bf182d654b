"""Whether the C kernels were built from the sources beside them: those of another revision would read other memory."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest(directory: str | Path) -> str:
    """SHA-256 of the C sources in a directory."""
    sources = hashlib.sha256()
    for path in sorted(Path(directory).glob("*.[ch]")):
        sources.update(path.read_bytes())
    return sources.hexdigest()


def check(built_from: str, directory: Path = Path(__file__).parents[1] / "source") -> None:
    """Raises ImportError unless the kernels were built from the sources in a directory. A wheel has none."""
    if (directory / "kernels.h").is_file() and digest(directory) != built_from:
        raise ImportError(
            f"the C kernels of tfkit-simd were built from other sources than those in {directory}; build them again: "
            f"pip install -e {directory.parent}"
        )
