"""The entries of position schemes that act on embeddings, before the first layer, and of `none`, which acts nowhere."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ...plugin import OneOf, Options, Parameter, PositionScheme, Size
from ...slots.position import PositionSite

EMBEDDINGS: frozenset[Literal["embeddings"]] = frozenset({"embeddings"})
COUNT = "which tokens a position counts: `all`, or only the `visible` ones, so that padding does not shift what follows"


class CombineOptions(Options):
    """How a position and an embedding are combined; see sinusoidal.py."""

    combine: Annotated[
        str,
        OneOf("add", "concat", "append"),
        Field(
            description="`add` to the embedding; `concat` with it and project back to d_model; or `append` to it, so that the"
            " stream is d_model + d_position wide"
        ),
    ] = "add"
    d_position: Annotated[
        Size | None, Field(description="features of a position for `concat` and `append`; d_model unless written")
    ] = None


class SinusoidalOptions(CombineOptions):
    """Options of `sinusoidal` and `sinusoidal_halves`."""

    base: Annotated[float, Field(gt=1.0, description="ratio of the longest wavelength to the shortest")] = 10000.0
    count: Annotated[str, OneOf("all", "visible"), Field(description=COUNT)] = "all"
    last_frequency: Annotated[
        str,
        OneOf("exclusive", "inclusive"),
        Field(description="whether the slowest frequency is 1/base itself (`inclusive`) or would come next"),
    ] = "exclusive"
    offset: Annotated[int, Field(ge=0, le=2**20, description="number of the first position")] = 0


class Sinusoidal2dOptions(Options):
    """Options of `sinusoidal_2d`."""

    base: Annotated[float, Field(gt=1.0, description="ratio of the longest wavelength to the shortest")] = 10000.0
    last_frequency: Annotated[
        str,
        OneOf("exclusive", "inclusive"),
        Field(description="whether the slowest frequency is 1/base itself (`inclusive`) or would come next"),
    ] = "exclusive"


class LearnedOptions(CombineOptions):
    """Options of `learned`."""

    max_len: Annotated[Size | None, Field(description="number of positions; not needed where the input fixes it")] = None
    offset: Annotated[int, Field(ge=0, le=2**20, description="rows of the table before the one of the first position")] = 0
    count: Annotated[str, OneOf("all", "visible"), Field(description=COUNT)] = "all"


def features(options: CombineOptions, site: PositionSite) -> int:
    """The number P of features of a position."""
    return options.d_position or site.width


def widens(options: CombineOptions, site: PositionSite) -> int:
    """The features that an embedding gains."""
    return features(options, site) if options.combine == "append" else 0


def projection_parameters(options: CombineOptions, site: PositionSite) -> tuple[Parameter, ...]:
    if options.combine != "concat":
        return ()
    return (Parameter("projection.weight", "projection", (site.width, site.width + features(options, site))),)


def projection_flops(options: CombineOptions, site: PositionSite, batch: int, queries: int, keys: int) -> int:
    return 2 * batch * queries * (site.width + features(options, site)) * site.width if options.combine == "concat" else 0


def combine_unsupported(options: CombineOptions, site: PositionSite) -> tuple[str, ...]:
    if options.combine == "add" and options.d_position not in (None, site.width):
        rule = f"`d_position` {options.d_position} cannot be added to an embedding {site.width} wide"
        return (f"{rule}; write `combine: append` or `combine: concat`",)
    return ()


def sinusoidal_unsupported(options: SinusoidalOptions, site: PositionSite) -> tuple[str, ...]:
    width, broken = features(options, site), combine_unsupported(options, site)
    if options.last_frequency == "inclusive" and (width < 4 or width % 2):
        return (*broken, f"`last_frequency: inclusive` needs an even width from 4 up, and the width is {width}")
    return broken


def sinusoidal_2d_unsupported(options: Sinusoidal2dOptions, site: PositionSite) -> tuple[str, ...]:
    if site.rows is None:
        return ("it is for the patches of an image: this input can have any number of positions",)
    if site.width % 4 or (options.last_frequency == "inclusive" and site.width < 8):
        return (f"it needs a width that is a multiple of 4, from 8 for `inclusive`, and the width is {site.width}",)
    return ()


def learned_rows(options: LearnedOptions, site: PositionSite) -> int | None:
    """The number of positions of the table, or None if neither the options nor the input fix it."""
    return options.max_len or site.rows


def learned_parameters(options: LearnedOptions, site: PositionSite) -> tuple[Parameter, ...]:
    rows = learned_rows(options, site)
    table = (Parameter("table", "position_table", (rows + options.offset, features(options, site))),) if rows else ()
    return (*table, *projection_parameters(options, site))


def learned_unsupported(options: LearnedOptions, site: PositionSite) -> tuple[str, ...]:
    rows = learned_rows(options, site)
    if rows is None:
        return ("`max_len` is needed: this input can have any number of positions",)
    if site.rows is not None and rows < site.rows:
        return (f"`max_len` {rows} is less than the {site.rows} positions of this input",)
    return combine_unsupported(options, site)


def _claims(options: CombineOptions) -> frozenset[str]:
    return frozenset({"additive"} if options.combine == "add" else ())


def _sinusoidal(name: str, summary: str, build: str) -> PositionScheme:
    return PositionScheme(
        name=name,
        summary=summary,
        reference="https://arxiv.org/abs/1706.03762",
        options=SinusoidalOptions,
        acts=EMBEDDINGS,
        parameters=projection_parameters,
        unsupported=sinusoidal_unsupported,
        flops=projection_flops,
        widens=widens,
        counts_padding=lambda options: options.count == "all",
        claims=_claims,
        build=f"tfkit.builtin.position.sinusoidal:{build}",
        source="tfkit.builtin.position:sinusoidal.py.jinja",
    )


ENTRIES: list[PositionScheme] = [
    PositionScheme(
        name="none",
        summary="no positions: the model sees a set (or, where causal, only its prefixes)",
        acts=frozenset(),
        build="tfkit.builtin.position.none:build",
    ),
    _sinusoidal("sinusoidal", "sines and cosines of the position in turn, as in the Transformer's paper", "build"),
    _sinusoidal("sinusoidal_halves", "all sines of the position, then all cosines (Marian, Whisper)", "build_halves"),
    PositionScheme(
        name="sinusoidal_2d",
        summary="sines and cosines of the column and of the row of a patch of an image",
        reference="https://arxiv.org/abs/2104.02057",
        options=Sinusoidal2dOptions,
        acts=EMBEDDINGS,
        unsupported=sinusoidal_2d_unsupported,
        counts_padding=lambda options: True,
        build="tfkit.builtin.position.sinusoidal_2d:build",
        source="tfkit.builtin.position:sinusoidal_2d.py.jinja",
    ),
    PositionScheme(
        name="learned",
        summary="one learned vector per position, up to max_len",
        reference="https://arxiv.org/abs/1705.03122",
        options=LearnedOptions,
        acts=EMBEDDINGS,
        parameters=learned_parameters,
        unsupported=learned_unsupported,
        flops=projection_flops,
        widens=widens,
        claims=_claims,
        max_len=lambda options: options.max_len,
        counts_padding=lambda options: options.count == "all",
        build="tfkit.builtin.position.learned:build",
        source="tfkit.builtin.position:learned.py.jinja",
    ),
]
