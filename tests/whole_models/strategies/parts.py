"""One part of a slot: an entry, and options drawn from its options model until the entry finds nothing wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from tfkit import Catalogue

from ..option_values import Domain, domains, tryable

TRIES = 6
Draw = Callable[[st.SearchStrategy[Any]], Any]
Accepts = Callable[[Any, Any], bool]


class Parts:
    """Draws parts as a spec writes them: a name, or a mapping with `kind`."""

    def __init__(self, draw: Draw, catalogue: Catalogue) -> None:
        self.draw, self.catalogue = draw, catalogue
        self.context = {"catalogue": catalogue}

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred draws; shrinks to False."""
        return bool(self.draw(st.integers(0, 99)) >= 100 - percent)

    def one(self, values: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(values))

    def part(
        self, slot: str, fits: Accepts = lambda entry, options: True, among: Callable[[Any], bool] = lambda entry: True
    ) -> Any:
        """A part of a slot that `fits(entry, options)`, from the entries `among` which to choose; None where none was found."""
        names = [
            name for name in self.catalogue.names(slot) if tryable(entry := self.catalogue.find(slot, name)) and among(entry)
        ]
        while names:
            entry = self.catalogue.find(slot, self.one(names))
            for attempt in range(TRIES):
                written = self.options(entry.options, further=attempt < TRIES - 1)
                try:
                    options = entry.options.model_validate(written, context=self.context)
                except ValidationError:
                    continue
                if fits(entry, options):
                    return {"kind": entry.name, **written} if written else entry.name
            names.remove(entry.name)
        return None

    def options(self, model: type[BaseModel], leave: frozenset[str] = frozenset(), further: bool = True) -> dict[str, Any]:
        """Options to write: what must be written, and of the `further` fields about every third."""
        written = {}
        for name, domain in domains(model).items():
            if name not in leave and (model.model_fields[name].is_required() or (further and self.chance(35))):
                written[name] = self.value(domain)
        return written

    def value(self, domain: Domain) -> Any:
        """A value of a field."""
        if domain.kind == "part":
            return self.part(domain.slot)
        if domain.kind == "model":
            assert domain.model is not None
            for _ in range(TRIES):
                written = self.options(domain.model)
                try:
                    domain.model.model_validate(written, context=self.context)
                except ValidationError:
                    continue
                return written
            return None
        return self.one((*domain.choices, *domain.numbers()))
