"""The entries of the built-in position schemes: of `none` and those that act on embeddings, before the first layer; of those
that rotate queries and keys; and of those that act on attention scores, by the distance from query to key."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from ...plugin import NoOptions, OneOf, Options, Parameter, PositionScheme, Size
from ...slots.position import PositionSite

EMBEDDINGS: frozenset[Literal["embeddings"]] = frozenset({"embeddings"})
COUNT = "which tokens a position counts: `all`, or only the `visible` ones, so that padding does not shift what follows"


class CombineOptions(Options):
    """How a position and an embedding are combined."""

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
    first_pair: Annotated[int, Field(ge=0, le=1, description="i of the first pair of features in base^(-2i/M)")] = 0
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
    if options.first_pair and options.last_frequency == "inclusive":
        return (
            *broken,
            "`last_frequency: inclusive` counts the pairs from 0; with `first_pair: 1` the last one is 1/base anyway",
        )
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


def _sinusoidal(name: str, summary: str) -> PositionScheme:
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
        row_positions=True,
        build=f"tfkit.builtin.position.embedding_positions:{name}",
        source="tfkit.builtin.position:sinusoidal.py.jinja",
    )


EMBEDDING_ENTRIES: list[PositionScheme] = [
    PositionScheme(
        name="none",
        summary="no positions: the model sees a set (or, where causal, only its prefixes)",
        acts=frozenset(),
        build="tfkit.builtin.position.embedding_positions:no_positions",
    ),
    _sinusoidal("sinusoidal", "sines and cosines of the position in turn, as in the Transformer's paper"),
    _sinusoidal("sinusoidal_halves", "all sines of the position, then all cosines (Marian, Whisper)"),
    PositionScheme(
        name="sinusoidal_2d",
        summary="sines and cosines of the column and of the row of a patch of an image",
        reference="https://arxiv.org/abs/2104.02057",
        options=Sinusoidal2dOptions,
        acts=EMBEDDINGS,
        unsupported=sinusoidal_2d_unsupported,
        counts_padding=lambda options: True,
        build="tfkit.builtin.position.embedding_positions:sinusoidal_2d",
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
        row_positions=True,
        build="tfkit.builtin.position.embedding_positions:learned",
        source="tfkit.builtin.position:learned.py.jinja",
    ),
]


USES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "linear": (frozenset(), frozenset()),
    "ntk": (frozenset(), frozenset()),
    "yarn": (frozenset({"trained_len"}), frozenset({"low", "high", "attention_factor", "truncate"})),
    "llama3": (frozenset({"trained_len"}), frozenset({"low", "high"})),
}
"""For each kind of scaling: the required options and the optional ones."""

ROTATIONS = {"yarn": (1.0, 32.0), "llama3": (1.0, 4.0)}
"""The defaults of `low` and `high`, from the papers."""


class Scaling(Options):
    """How the frequencies change so that a model trained on `trained_len` positions reads `factor` times as many."""

    kind: Annotated[str, OneOf(*USES), Field(description="linear, ntk, yarn or llama3")]
    factor: Annotated[float, Field(ge=1.0, description="how many times longer the texts may become")]
    trained_len: Annotated[Size | None, Field(description="yarn, llama3: positions that the model was trained on")] = None
    low: Annotated[
        float | None,
        Field(
            gt=0.0,
            description="yarn, llama3: frequencies of fewer turns in trained_len are divided by factor; 1 unless written",
        ),
    ] = None
    high: Annotated[
        float | None,
        Field(gt=0.0, description="yarn (32), llama3 (4): frequencies of more turns in trained_len stay as they are"),
    ] = None
    attention_factor: Annotated[
        float | None,
        Field(gt=0.0, description="yarn: multiplies rotated queries and keys; 0.1 ln(factor) + 1 unless written"),
    ] = None
    truncate: Annotated[
        bool | None, Field(description="yarn: whether the ramp starts and ends at whole pairs; true unless written")
    ] = None

    @model_validator(mode="after")
    def _check_options(self) -> Scaling:
        required, optional = USES[self.kind]
        written = {name for name in Scaling.model_fields if getattr(self, name) is not None} - {"kind", "factor"}
        for name in sorted(required - written):
            raise PydanticCustomError("scaling_needs", "`{kind}` scaling needs `{name}`", {"kind": self.kind, "name": name})
        for name in sorted(written - required - optional):
            raise PydanticCustomError("scaling_unused", "`{kind}` scaling has no `{name}`", {"kind": self.kind, "name": name})
        low, high = self.turns()
        if low >= high:
            raise PydanticCustomError(
                "scaling_order", "`low` {low} must be less than `high` {high}", {"low": low, "high": high}
            )
        return self

    def turns(self) -> tuple[float, float]:
        """(`low`, `high`), with defaults filled in."""
        low, high = ROTATIONS.get(self.kind, (1.0, 32.0))
        return self.low or low, self.high or high


class RotaryOptions(Options):
    """Options of `rotary_half` and `rotary_interleaved`."""

    base: Annotated[float, Field(gt=1.0, description="ratio of the longest wavelength to the shortest")] = 10000.0
    dims: Annotated[
        Size | None, Field(description="how many features of a head are rotated, from the first on; all if null")
    ] = None
    scaling: Annotated[Scaling | None, Field(description="how frequencies change for texts longer than trained on")] = None


def unsupported(options: RotaryOptions, site: PositionSite) -> tuple[str, ...]:
    dims = options.dims or site.head_dim
    name = "`dims`" if options.dims else "head_dim"
    reasons = []
    if dims % 2:
        reasons.append(f"features are rotated in pairs, and {name} {dims} is odd")
    if dims > site.head_dim:
        reasons.append(f"`dims` {dims} is more than head_dim {site.head_dim}")
    if options.scaling and options.scaling.kind == "ntk" and dims < 4:
        reasons.append(f"`ntk` scaling needs two pairs of features, and {name} is {dims}")
    return tuple(reasons)


def _rotary(name: str, summary: str) -> PositionScheme:
    return PositionScheme(
        name=name,
        summary=summary,
        reference="https://arxiv.org/abs/2104.09864",
        options=RotaryOptions,
        acts=frozenset({"queries_keys"}),
        unsupported=unsupported,
        row_positions=True,
        build=f"tfkit.builtin.position.rotary:{name}",
        source="tfkit.builtin.position:rotary.py.jinja",
    )


ROTARY_ENTRIES: list[PositionScheme] = [
    _rotary("rotary_half", "rotates feature i with feature i + dims/2 (GPT-NeoX, LLaMA in Hugging Face's layout)"),
    _rotary("rotary_interleaved", "rotates feature 2i with feature 2i + 1 (RoFormer, GPT-J)"),
]


SCORES: frozenset[Literal["scores"]] = frozenset({"scores"})
TABLES = "whether the layers of a stack share one table (`stack`) or each has its own (`layer`)"
Distance = Annotated[int, Field(ge=1, le=2**20)]


class RelativeT5Options(Options):
    """Options of `relative_t5`."""

    buckets: Annotated[int, Field(ge=2, le=2**20, description="how many groups of distances have a value of their own")] = 32
    max_distance: Annotated[Distance, Field(description="distances from here on share the last group")] = 128
    tables: Annotated[str, OneOf("stack", "layer"), Field(description=TABLES)] = "stack"


class RelativeShawOptions(Options):
    """Options of `relative_shaw`."""

    max_distance: Annotated[Distance, Field(description="distances beyond this one count as this one")] = 16
    tables: Annotated[str, OneOf("stack", "layer"), Field(description=TABLES)] = "layer"


def tables(options: RelativeT5Options | RelativeShawOptions) -> Literal["none", "stack", "layer"]:
    return cast(Literal["stack", "layer"], options.tables)


def t5_parameters(options: RelativeT5Options, site: PositionSite) -> tuple[Parameter, ...]:
    return (Parameter("table", "relative_table", (options.buckets, site.heads)),)


def t5_exact(options: RelativeT5Options, causal: bool) -> int:
    """The number of distances of one direction, from 0 up, that have a bucket of their own."""
    return (options.buckets if causal else options.buckets // 2) // 2


def t5_unsupported(options: RelativeT5Options, site: PositionSite) -> tuple[str, ...]:
    reasons = []
    exact = t5_exact(options, site.causal)
    if not site.causal and options.buckets % 2:
        reasons.append(f"half of the buckets are for keys after the query, and `buckets` {options.buckets} is odd")
    if exact < 1:
        reasons.append(f"`buckets` {options.buckets} is too few where keys on both sides are seen; 4 is the least")
    if options.max_distance <= exact:
        reasons.append(
            f"`max_distance` {options.max_distance} must be more than the {exact} distances with a bucket of their own"
        )
    return tuple(reasons)


def shaw_parameters(options: RelativeShawOptions, site: PositionSite) -> tuple[Parameter, ...]:
    return (Parameter("table", "relative_table", (2 * options.max_distance + 1, site.head_dim)),)


def shaw_flops(options: RelativeShawOptions, site: PositionSite, batch: int, queries: int, keys: int) -> int:
    return 2 * batch * site.heads * queries * site.head_dim * (2 * options.max_distance + 1)


SCORE_ENTRIES: list[PositionScheme] = [
    PositionScheme(
        name="alibi",
        summary="a penalty linear in the distance, with one fixed slope per head",
        reference="https://arxiv.org/abs/2108.12409",
        options=NoOptions,
        acts=SCORES,
        bias_kinds=frozenset({"linear"}),
        row_positions=True,
        build="tfkit.builtin.position.score_biases:alibi",
        source="tfkit.builtin.position:alibi.py.jinja",
    ),
    PositionScheme(
        name="relative_t5",
        summary="one learned value per head and group of distances, groups growing with the distance",
        reference="https://arxiv.org/abs/1910.10683",
        options=RelativeT5Options,
        acts=SCORES,
        tables=tables,
        parameters=t5_parameters,
        unsupported=t5_unsupported,
        bias_kinds=frozenset({"distance"}),
        row_positions=True,
        build="tfkit.builtin.position.score_biases:relative_t5",
        source="tfkit.builtin.position:relative_t5.py.jinja",
    ),
    PositionScheme(
        name="relative_shaw",
        summary="one learned vector per clipped distance, added to the key; Shaw's value term is not part of attention here",
        reference="https://arxiv.org/abs/1803.02155",
        options=RelativeShawOptions,
        acts=SCORES,
        tables=tables,
        parameters=shaw_parameters,
        flops=shaw_flops,
        bias_kinds=frozenset({"dense"}),
        reads_query=True,
        row_positions=True,
        build="tfkit.builtin.position.score_biases:relative_shaw",
        source="tfkit.builtin.position:relative_shaw.py.jinja",
    ),
]


ENTRIES: list[PositionScheme] = [*EMBEDDING_ENTRIES, *ROTARY_ENTRIES, *SCORE_ENTRIES]
