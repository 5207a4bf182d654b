"""Laws of int8 products: linear maps whose weights and activations are rounded to integers."""

from .check import check_product

__all__ = ["check_product"]
