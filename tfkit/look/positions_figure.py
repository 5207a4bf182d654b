"""`positions(...)`: the position schemes of a spec or a model, shown in a notebook, as a page, or as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..builder.position_schemes import position_values
from ..catalogue import Catalogue, load_catalogue
from ..files import write_whole
from ..io import read_saved
from ..io.loading import weight_reader
from ..nn.position_values import PositionValues
from ..spec import ModelSpec, load_spec
from ..view.pages import framed
from .forms import PICTURES, check_matplotlib, check_suffix


@dataclass(frozen=True)
class PositionsFigure:
    """The position schemes of a model. A notebook shows them as a page.

    Attributes:
        name: The name of the model.
        groups: For each scheme its rows, a title and values; with `before` two rows, the earlier one first.
    """

    name: str
    groups: tuple[tuple[tuple[str, PositionValues], ...], ...]

    @property
    def schemes(self) -> tuple[PositionValues, ...]:
        """The values of each scheme."""
        return tuple(rows[-1][1] for rows in self.groups)

    def drawn(self, form: str) -> str | bytes:
        """The page or a picture.

        Args:
            form: `html`, `png` or `svg`.

        Returns:
            HTML text, or the bytes of the picture.

        Raises:
            BuildError: matplotlib is not installed.
        """
        check_matplotlib()
        if form == "html":
            from ..view.position_schemes import positions_page

            return positions_page(self.name, self.groups)
        from ..view.position_schemes import draw

        return draw([row for group in self.groups for row in group], form)

    def save(self, path: str | Path) -> None:
        """Write the page or a picture.

        Args:
            path: a file name that ends in `.html`, `.png` or `.svg`; without an ending it is a page. A file of this name is
                replaced.

        Raises:
            InputError: the name has another ending.
            BuildError: matplotlib is not installed.
            StoreError: the file cannot be written.
        """
        check_suffix(path)
        place = Path(path)
        write_whole(place, self.drawn(place.suffix[1:] if place.suffix in PICTURES else "html"))

    def _repr_html_(self) -> str:
        return framed(str(self.drawn("html")), f"positions of {self.name}")


def positions(
    model: str | Path | ModelSpec, *, count: int = 50, before: str | Path | ModelSpec | None = None,
    overrides: Sequence[str] = (), catalogue: Catalogue | None = None,
) -> PositionsFigure:  # fmt: skip
    """Evaluate the position schemes of a spec or a model. No other weight of the model is allocated.

    Args:
        model: a spec, its file, or the directory of a saved model or run, whose learned tables are read.
        count: positions at most; an image has its own number.
        before: another spec or model, whose equal schemes are drawn above.
        overrides: changes of the spec in a file, such as `defaults.position=alibi`.
        catalogue: the entries that names refer to; all installed ones by default.

    Returns:
        The figure.

    Raises:
        SpecError: a spec is wrong.
        StoreError: a file of a model is missing or altered.
    """
    catalogue = catalogue or load_catalogue()
    spec, schemes = _schemes(model, count, overrides, catalogue)
    earlier = _schemes(before, count, (), catalogue)[1] if before is not None else []
    name = before.name if isinstance(before, ModelSpec) else before
    groups = tuple(
        (
            *((f"before, {name}", other) for other in earlier if _place(other) == _place(scheme)),
            (f"{scheme.name}: {scheme.kind}", scheme),
        )
        for scheme in schemes
    )
    return PositionsFigure(spec.name, groups)


def _schemes(
    model: str | Path | ModelSpec, count: int, overrides: Sequence[str], catalogue: Catalogue
) -> tuple[ModelSpec, list[PositionValues]]:
    if isinstance(model, ModelSpec) or not Path(model).is_dir():
        spec = model if isinstance(model, ModelSpec) else load_spec(model, catalogue, overrides)
        return spec, position_values(spec, catalogue, count)
    spec = read_saved(Path(model), catalogue).spec
    with weight_reader(model) as read:
        return spec, position_values(spec, catalogue, count, read)


def _place(values: PositionValues) -> tuple[str, str, str]:
    return values.name, values.kind, values.place
