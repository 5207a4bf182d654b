"""No positions. The scheme acts nowhere, so its module has no method to call."""

from __future__ import annotations

from torch import nn

from ...plugin import NoOptions
from ...slots.position import PositionSite


def build(options: NoOptions, site: PositionSite) -> nn.Module:
    """A module without parameters and without methods."""
    return nn.Module()
