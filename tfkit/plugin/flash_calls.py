"""Names for backends whose kernel has FlashAttention's arguments: causality, a window, and batches packed by lengths.

Such a kernel aligns positions to the last key and takes no mask. These functions cut a call of the contract into calls that it
can compute. Importing this imports no torch before a name is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names

if TYPE_CHECKING:
    from ..attention.flash_calls import (
        FlashCall as FlashCall,
        FlashCalls as FlashCalls,
        FlashKernel as FlashKernel,
        flash_calls as flash_calls,
        run_flash_calls as run_flash_calls,
    )

__getattr__, __dir__, __all__ = lazy_names(__name__)
