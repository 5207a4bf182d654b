"""The entries of position schemes that act on embeddings, before the first layer, and of `none`, which acts nowhere."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ...plugin import OneOf, Options, Parameter, PositionScheme, Size
from ...slots.position import PositionSite

EMBEDDINGS: frozenset[Literal["embeddings"]] = frozenset({"embeddings"})
COUNT = "which tokens a position counts: `all`, or only the `visible` ones, so that padding does not shift what follows"


class SinusoidalOptions(Options):
    """Options of `sinusoidal` and `sinusoidal_halves`."""

    base: Annotated[float, Field(gt=1.0, description="ratio of the longest wavelength to the shortest")] = 10000.0
    combine: Annotated[
        str, OneOf("add", "concat"), Field(description="`add` to the embedding, or `concat` with it and project back")
    ] = "add"
    count: Annotated[str, OneOf("all", "visible"), Field(description=COUNT)] = "all"
    last_frequency: Annotated[
        str,
        OneOf("exclusive", "inclusive"),
        Field(description="whether the slowest frequency is 1/base itself (`inclusive`) or would come next"),
    ] = "exclusive"


class Sinusoidal2dOptions(Options):
    """Options of `sinusoidal_2d`."""

    base: Annotated[float, Field(gt=1.0, description="ratio of the longest wavelength to the shortest")] = 10000.0
    last_frequency: Annotated[
        str,
        OneOf("exclusive", "inclusive"),
        Field(description="whether the slowest frequency is 1/base itself (`inclusive`) or would come next"),
    ] = "exclusive"


class LearnedOptions(Options):
    """Options of `learned`."""

    max_len: Annotated[Size | None, Field(description="number of positions; not needed where the input fixes it")] = None
    offset: Annotated[int, Field(ge=0, le=2**20, description="rows of the table before the one of the first position")] = 0
    count: Annotated[str, OneOf("all", "visible"), Field(description=COUNT)] = "all"


def sinusoidal_parameters(options: SinusoidalOptions, site: PositionSite) -> tuple[Parameter, ...]:
    if options.combine == "add":
        return ()
    return (Parameter("projection.weight", "projection", (site.width, 2 * site.width)),)


def sinusoidal_flops(options: SinusoidalOptions, site: PositionSite, batch: int, queries: int, keys: int) -> int:
    return 2 * batch * queries * 2 * site.width * site.width if options.combine == "concat" else 0


def sinusoidal_unsupported(options: SinusoidalOptions, site: PositionSite) -> tuple[str, ...]:
    if options.last_frequency == "inclusive" and (site.width < 4 or site.width % 2):
        return (f"`last_frequency: inclusive` needs an even width from 4 up, and the width is {site.width}",)
    return ()


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
    return (Parameter("table", "position_table", (rows + options.offset, site.width)),) if rows else ()


def learned_unsupported(options: LearnedOptions, site: PositionSite) -> tuple[str, ...]:
    rows = learned_rows(options, site)
    if rows is None:
        return ("`max_len` is needed: this input can have any number of positions",)
    if site.rows is not None and rows < site.rows:
        return (f"`max_len` {rows} is less than the {site.rows} positions of this input",)
    return ()


def _sinusoidal(name: str, summary: str, build: str) -> PositionScheme:
    return PositionScheme(
        name=name,
        summary=summary,
        reference="https://arxiv.org/abs/1706.03762",
        options=SinusoidalOptions,
        acts=EMBEDDINGS,
        parameters=sinusoidal_parameters,
        unsupported=sinusoidal_unsupported,
        flops=sinusoidal_flops,
        counts_padding=lambda options: options.count == "all",
        claims=lambda options: frozenset({"additive"} if options.combine == "add" else ()),
        build=f"tfkit.builtin.position.sinusoidal:{build}",
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
    ),
    PositionScheme(
        name="learned",
        summary="one learned vector per position, up to max_len",
        reference="https://arxiv.org/abs/1705.03122",
        options=LearnedOptions,
        acts=EMBEDDINGS,
        parameters=learned_parameters,
        unsupported=learned_unsupported,
        max_len=lambda options: options.max_len,
        counts_padding=lambda options: options.count == "all",
        build="tfkit.builtin.position.learned:build",
    ),
]
