"""Every model mutant is found by a property that speaks of it, and a model without one passes."""

from __future__ import annotations

import pytest

from kill_matrix.models.evaluation import LENGTHS, SPECS, verify_mutant
from kill_matrix.models.mutants import model_mutants

MUTANTS = {mutant.name: mutant for mutant in model_mutants()}
KILLED_IN_PARTS = {"causal_one_too_few", "embedding_scale_dropped", "attention_scale", "window_added", "heads_reversed"}
LOCAL = {"projections", "feed-forward", "token_logits", "tokens", "dense", "classify"}
WHERE = {
    "cache": {"decoding in chunks", "failed step", "reordered rows"},
    "placement": {"wiring of the stack", "wiring of the layer", "norm"},
    "feed-forward": {"feed-forward"},
    "wiring": {"wiring of the stack", "wiring of the layer", "request", "tokens", "gradient flow"},
    "dropout": {"dropout on", "dropout off"},
    "backend": {"attention, padding by mask", "attention, padding by lengths"},
    "product": LOCAL,
    "unseen": {"float64 run", "decoding in chunks", "gradients"},
    "gradient": {"gradients"},
    "position": {"long sequences"},
    "padding": {"padding by lengths"},
    "rows": {"many rows"},
    "documents": {"packed rows"},
    "memory gradient": {"gradient flow"},
    "sharing": {"own parameters", "feed-forward"},
    "formula": {"float64 run", "attention, padding by mask", "tokens"},
}
BY_DEFAULT = (
    "product",
    "unseen",
    "gradient",
    "position",
    "padding",
    "rows",
    "documents",
    "memory gradient",
    "sharing",
    "formula",
)
"""Families that `verify` must find with the arguments that a user gets: float32, and its own lengths."""
PARTS = {"cache": ("whole model",), "dropout": ("whole model",), "wiring": ("sub-layers", "whole model")}
"""What of `verify` is run for another family, the sub-layers unless written: the whole kill matrix takes two minutes."""


def failed(shape, mutant, catalogue):
    if mutant is None or mutant.family in BY_DEFAULT or mutant.name == "cache_wrong_from_64":
        report = verify_mutant(shape, 0, mutant, catalogue)
    else:
        parts = ("sub-layers",) if mutant.name in KILLED_IN_PARTS else PARTS.get(mutant.family, ("sub-layers",))
        report = verify_mutant(shape, 0, mutant, catalogue, ("float64",), parts, LENGTHS[shape])
    rows = [row for row in report.rows if row.status in ("failed", "inconclusive", "not run", "not checked")]
    return rows, report


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_where_it_belongs(name, catalogue):
    mutant = MUTANTS[name]
    rows, report = failed(mutant.shape, mutant, catalogue)
    found = {row.property for row in rows}
    assert found & WHERE[mutant.family], f"found by {found or 'nothing'}"
    assert (report.verdict, report.exit_code) == ("FAILED", 1)


PRODUCTS = sorted(name for name, mutant in MUTANTS.items() if mutant.family == "product")


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_found_in_the_whole_model_in_float32_too(name, catalogue):
    """Its own row sees it with a hook on the module; the row of the whole model sees what runs."""
    rows, _ = failed(MUTANTS[name].shape, MUTANTS[name], catalogue)
    assert ("float64 run", "float32") in {(row.property, row.dtype) for row in rows}
    assert not any(row.dtype == "float64" for row in rows), "in float64 these mutants are right"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place", "parameter"),
    [
        ("query_product", "the query projection of encoder.0.self_attention",
         "`nodes.encoder.layers.0.branches.self_attention.query.weight`"),
        ("ffn_output_product", "encoder.0.ffn", "`nodes.encoder.layers.0.branches.ffn.output.weight`"),
        ("head_product", "`logits`", "`nodes.source.embedding.weight`"),
        ("dense_product", "`middle`", "`nodes.middle.linear.weight`"),
        ("key_gradient", "the key projection of body.0.self_attention",
         "`nodes.body.layers.0.branches.self_attention.key.weight`"),
        ("ffn_gradient", "the output part of decoder.1.ffn", "`nodes.decoder.layers.1.branches.ffn.output."),
        ("no_gradient_from_first_cross_attention", "the key projection of decoder.0.cross_attention",
         "`nodes.decoder.layers.0.branches.cross_attention.key.weight`"),
        ("residual_dropout_never", "after decoder.1.cross_attention",
         "`nodes.decoder.layers.1.residuals.cross_attention.dropout`"),
        ("layers_share_weight", "`nodes.body.layers.0.branches.self_attention.query.weight`",
         "`nodes.body.layers.1.branches.self_attention.query.weight`"),
    ],
)  # fmt: skip
def test_the_message_names_the_site_and_the_parameter(name, place, parameter, catalogue):
    rows, _ = failed(MUTANTS[name].shape, MUTANTS[name], catalogue)
    messages = [row.message for row in rows]
    assert any(place in message and parameter in message for message in messages), messages


@pytest.mark.slow
@pytest.mark.parametrize("shape", SPECS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_model_without_a_mutant_passes(shape, seed, catalogue):
    report = verify_mutant(shape, seed, None, catalogue)
    assert [row for row in report.rows if row.status in ("failed", "inconclusive", "not run", "not checked")] == []
    assert (report.verdict, report.exit_code) == ("VERIFIED", 0)


def test_names_are_distinct_and_every_family_has_mutants():
    assert len(model_mutants()) == len(MUTANTS) >= 85
    assert {mutant.family for mutant in model_mutants()} == set(WHERE)
