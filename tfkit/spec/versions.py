"""The version of the spec language. There is one so far; a step from an older one to the next changes the marked tree."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from .located import INVALID, Diagnostics, Located

CURRENT = 1
Step = Callable[[Located], Located]
STEPS: Mapping[int, Step] = {}
"""From a version to the next one: `STEPS[n]` turns a spec of version n into one of version n + 1."""


def migrate(root: Located, diagnostics: Diagnostics, steps: Mapping[int, Step] = STEPS, current: int = CURRENT) -> Located:
    """The spec in today's language. An older one is changed with a FutureWarning, a newer one is refused.

    Raises SpecError for a version that this tfkit does not know: nothing else in the file could be judged.
    """
    written = root.get("tfkit")
    fix = f"write `tfkit: {current}`"
    if written is None:
        diagnostics.add(
            "TFK009", root.location, "tfkit", "the spec does not say in which version of the language it is written", fix
        )
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
