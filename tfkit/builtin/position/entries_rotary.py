"""The entries of rotary position schemes, which act on queries and keys, and the options that scale them to longer texts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from ...plugin import OneOf, Options, PositionScheme, Size
from ...slots.position import PositionSite

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


def _rotary(name: str, summary: str, build: str) -> PositionScheme:
    return PositionScheme(
        name=name,
        summary=summary,
        reference="https://arxiv.org/abs/2104.09864",
        options=RotaryOptions,
        acts=frozenset({"queries_keys"}),
        unsupported=unsupported,
        build=f"tfkit.builtin.position.rotary:{build}",
        source="tfkit.builtin.position:rotary.py.jinja",
    )


ENTRIES: list[PositionScheme] = [
    _rotary("rotary_half", "rotates feature i with feature i + dims/2 (GPT-NeoX, LLaMA in Hugging Face's layout)", "build"),
    _rotary("rotary_interleaved", "rotates feature 2i with feature 2i + 1 (RoFormer, GPT-J)", "build_interleaved"),
]
