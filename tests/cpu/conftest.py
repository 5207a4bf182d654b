"""Every test draws from the same seed."""

from fixtures import seeded  # noqa: F401
from forced import onednn_products, processor, small_weights_rounded

__all__ = ["onednn_products", "processor", "small_weights_rounded"]
