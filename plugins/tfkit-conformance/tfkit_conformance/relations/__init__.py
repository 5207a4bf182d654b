"""The relations that every attention backend must satisfy, independent of the right answer.

`fit` says whether a relation can be tried on a case and gives the case as the relation wants it; `relation.run` tries it.
"""

from __future__ import annotations

from .cutting import CUTTING
from .dropout import DROPOUT
from .gradients import GRADIENTS
from .hidden import HIDDEN
from .identities import IDENTITIES
from .independence import INDEPENDENCE
from .modes import MODES
from .not_finite import NOT_FINITE
from .order import ORDER
from .relation import Feature, Relation, fit
from .scaling import SCALING
from .spelling import SPELLING
from .values import VALUES

RELATIONS: tuple[Relation, ...] = (
    *MODES, *SCALING, *HIDDEN, *INDEPENDENCE, *ORDER, *CUTTING, *VALUES, *SPELLING, *IDENTITIES, *GRADIENTS, *DROPOUT,
    *NOT_FINITE,
)  # fmt: skip

__all__ = ["RELATIONS", "Feature", "Relation", "fit"]
