"""The entries of the built-in placements, without torch: the norms of a layer and the constants of its residual."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ...plugin import NoOptions, OneOf, Options, Placement
from ...slots.placement import Constants, PlacementContext


class ResidualOptions(Options):
    """Without `residual`, a layer hands on only what its sub-layers compute."""

    residual: Annotated[bool, Field(description="whether x is added to the output of each sub-layer")] = True


def residual_constants(options: ResidualOptions, context: PlacementContext) -> Constants:
    """x times 1, or times 0."""
    return Constants(skip=float(options.residual))


class ParallelOptions(Options):
    """`norms: shared` is one norm for all sub-layers (GPT-J), `separate` one for each (GPT-NeoX)."""

    norms: Annotated[str, OneOf("shared", "separate"), Field(description="one norm for all sub-layers, or one each")] = "shared"


def _one_each(options: Any, sublayers: tuple[str, ...]) -> tuple[str, ...]:
    return sublayers


def _around_each(options: Any, sublayers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}_{side}" for name in sublayers for side in ("in", "out"))


def _parallel(options: ParallelOptions, sublayers: tuple[str, ...]) -> tuple[str, ...]:
    return ("shared",) if options.norms == "shared" else sublayers


def deepnorm_constants(options: NoOptions, context: PlacementContext) -> Constants:
    """alpha and beta of Wang et al. 2022, section 2, table "DeepNorm" (https://arxiv.org/abs/2203.00555).

    alpha multiplies the residual. beta multiplies the initial standard deviation of value, output and feed-forward weights. In
    the table N is the number of encoder layers, M of decoder layers; `num_layers` is that of the layer's stack.
    """
    num_layers, partner = context.num_layers, context.partner_layers
    if context.role == "encoder" and partner:  # a recurrent decoder has no layers of the table's kind
        alpha, beta = 0.81 * (num_layers**4 * partner) ** (1 / 16), 0.87 * (num_layers**4 * partner) ** (-1 / 16)
    elif context.role == "decoder":
        alpha, beta = (3 * num_layers) ** 0.25, (12 * num_layers) ** -0.25
    else:
        alpha, beta = (2 * num_layers) ** 0.25, (8 * num_layers) ** -0.25
    return Constants(skip=alpha, gains=dict.fromkeys(("value", "attention_output", "ffn_in", "ffn_gate", "ffn_out"), beta))


ENTRIES = [
    Placement(
        name="post",
        summary="x = norm(x + f(x)), the paper's",
        reference="https://arxiv.org/abs/1706.03762",
        norm_sites=_one_each,
        final_norm=lambda options: False,
        options=ResidualOptions,
        constants=residual_constants,
        build="tfkit.builtin.placement.residual_layers:post",
        passes_padding=True,
        source="tfkit.builtin.placement:post.py.jinja",
    ),
    Placement(
        name="pre",
        summary="x = x + f(norm(x)), with a norm at the end of the stack",
        reference="https://arxiv.org/abs/2002.04745",
        norm_sites=_one_each,
        final_norm=lambda options: True,
        options=ResidualOptions,
        constants=residual_constants,
        build="tfkit.builtin.placement.residual_layers:pre",
        passes_padding=True,
        source="tfkit.builtin.placement:pre.py.jinja",
    ),
    Placement(
        name="sandwich",
        summary="x = x + norm_out(f(norm_in(x))), with a norm at the end of the stack",
        reference="https://arxiv.org/abs/2105.13290",
        norm_sites=_around_each,
        final_norm=lambda options: True,
        build="tfkit.builtin.placement.residual_layers:sandwich",
        passes_padding=True,
        source="tfkit.builtin.placement:sandwich.py.jinja",
    ),
    Placement(
        name="residual_post",
        summary="x = x + norm(f(x)), with a norm at the end of the stack (Swin V2, OLMo 2)",
        reference="https://arxiv.org/abs/2111.09883",
        norm_sites=_one_each,
        final_norm=lambda options: True,
        build="tfkit.builtin.placement.residual_layers:residual_post",
        passes_padding=True,
        source="tfkit.builtin.placement:residual_post.py.jinja",
    ),
    Placement(
        name="deepnorm",
        summary="x = norm(alpha x + f(x)), initial weights times beta; both from the depths of both stacks",
        reference="https://arxiv.org/abs/2203.00555",
        norm_sites=_one_each,
        final_norm=lambda options: False,
        constants=deepnorm_constants,
        build="tfkit.builtin.placement.residual_layers:post",
        passes_padding=True,
        source="tfkit.builtin.placement:post.py.jinja",
    ),
    Placement(
        name="parallel",
        summary="x = x + sum of f(norm(x)) over all sub-layers, with a norm at the end of the stack",
        reference="https://arxiv.org/abs/2204.02311",
        options=ParallelOptions,
        norm_sites=_parallel,
        final_norm=lambda options: True,
        build="tfkit.builtin.placement.residual_layers:parallel",
        passes_padding=True,
        source="tfkit.builtin.placement:parallel.py.jinja",
    ),
    Placement(
        name="none",
        summary="x = x + f(x), no norm at all",
        norm_sites=lambda options, sublayers: (),
        final_norm=lambda options: False,
        options=ResidualOptions,
        constants=residual_constants,
        build="tfkit.builtin.placement.residual_layers:bare",
        source="tfkit.builtin.placement:bare.py.jinja",
    ),
]
