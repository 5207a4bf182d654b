"""The implementation of flash attention that torch uses in this process, which changes what `sdpa` runs.

`torch.nn.attention.activate_flash_attention_impl("FA4")` activates one. Importing this imports no torch: a process that has not
imported torch has not activated one.

Reference: https://docs.pytorch.org/docs/stable/nn.attention.html
"""

from __future__ import annotations

import sys


def flash_implementation() -> str | None:
    """The active implementation.

    Returns:
        Its name, such as "FA4"; None for torch's own, or if this torch has no others.
    """
    current = getattr(sys.modules.get("torch.nn.attention"), "current_flash_attention_impl", None)
    name = current() if callable(current) else None
    return None if name is None else str(name)
