"""The version of the spec language. A migration step changes the located tree of one version to the next."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from .located import INVALID, Diagnostics, Located

CURRENT = 1
Step = Callable[[Located], Located]
STEPS: Mapping[int, Step] = {}
"""`STEPS[n]` turns a spec of version n into one of version n + 1."""


def migrate(root: Located, diagnostics: Diagnostics, steps: Mapping[int, Step] = STEPS, current: int = CURRENT) -> Located:
    """The spec in the current language. An older version is migrated, with a FutureWarning.

    Raises SpecError at once for an unknown version, because the rest of the file cannot be checked.
    """
    written = root.get("tfkit")
    fix = f"write `tfkit: {current}`"
    if written is None:
        diagnostics.add("TFK009", root.location, "tfkit", "the spec has no version of the spec language", fix)
        return root.holding({**root.mapping, "tfkit": Located(INVALID, root.location, "tfkit")})
    version = written.value
    if version is INVALID:
        return root
    if not isinstance(version, int) or isinstance(version, bool):
        diagnostics.add("TFK009", written.location, "tfkit", f"the version is a whole number, {written.shown}", fix)
        return root.holding({**root.mapping, "tfkit": written.holding(INVALID)})
    if version > current:
        message = f"the spec is written in version {version}, this tfkit knows versions up to {current}"
        diagnostics.fatal("TFK009", written.location, "tfkit", message, "upgrade tfkit")
    for number in range(version, current):
        if number not in steps:
            diagnostics.fatal("TFK009", written.location, "tfkit", f"there is no version {version} of the spec language", fix)
        root = steps[number](root)
    if version < current:
        message = f"the spec is written in version {version} and was read as version {current}; {fix} to keep it"
        warnings.warn(f"{written.location}: {message}", FutureWarning, stacklevel=2)
        root = root.holding({**root.mapping, "tfkit": written.holding(current)})
    return root
