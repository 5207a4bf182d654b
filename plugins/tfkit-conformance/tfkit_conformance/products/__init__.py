"""Laws of products in a lower precision: linear maps whose weights and activations are rounded to int8 or bfloat16."""

from .check import check_product

__all__ = ["check_product"]
