"""Export to CTranslate2 (https://github.com/OpenNMT/CTranslate2), an inference engine in C++.

The engine's specification of a Transformer is filled with the weights of a model. It is more general than the engine's own
converters, which refuse many of these models.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...files import Content
from .refusals import refusals

if TYPE_CHECKING:
    from ...nn.model import Model

__all__ = ["QUANTIZATIONS", "refusals", "write"]

QUANTIZATIONS = ("float32", "int8", "int8_float32")


def write(model: Model, texts: Mapping[str, Content], directory: Path, *, quantization: str = "float32") -> None:
    """Write a model that `refusals` accepts into an empty directory: `model.bin`, `config.json`, vocabularies and `texts`, its
    other files. `quantization` is the type of the matrices in the file."""
    from .model_files import write_files  # it imports ctranslate2

    write_files(model, dict(texts), directory, quantization)
