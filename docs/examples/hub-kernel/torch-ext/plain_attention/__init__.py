"""A kernel in the form of Hugging Face's hub, in plain PyTorch: a function and a layer."""

from . import layers
from .attention import flash_attn_func

__all__ = ["flash_attn_func", "layers"]
