"""The laws kill what is wrong: some mutants of every family die here, the rest in the kill matrix."""

from __future__ import annotations

import pytest

from kill_matrix.laws.evaluation import evaluate_law_mutants, mutants, reports

SOME = {
    "position": [
        "rotary_bf16_positions", "rotary_half_as_interleaved", "rotary_one_pair", "rotary_from_zero", "alibi_closed_form",
        "t5_boundary", "t5_sides", "shaw_first_row", "learned_clamped", "sinusoidal_swapped", "sinusoidal_hidden",
    ],
    "norm": ["layer_norm_unbiased", "layer_norm_no_eps", "layer_norm_tokens", "rms_norm_half", "rms_norm_rounds_twice"],
    "placement": ["post_norm_first", "pre_residual_normed", "sandwich_no_out", "parallel_sequential", "pre_dropout_eval"],
    "activation": ["gelu_as_tanh", "silu_overflows", "relu_slope", "identity_centred", "ffn_gate_other"],
    "score": ["general_strides"],
    "cell": ["gru_held"],
}  # fmt: skip


def test_names_are_single_and_every_slot_has_mutants(catalogue):
    names = [mutant.name for mutant in mutants()]
    assert len(set(names)) == len(names)
    assert len(names) >= 150
    for slot, some in SOME.items():
        assert sum(mutant.slot == slot for mutant in mutants()) >= 22
        assert set(some) <= {mutant.name for mutant in mutants() if mutant.slot == slot}
    for mutant in mutants():
        assert catalogue.find(mutant.slot, mutant.base) is not None
        assert mutant.summary


@pytest.mark.slow
@pytest.mark.parametrize("slot", SOME)
def test_a_mutant_is_killed(slot, catalogue):
    rows = list(evaluate_law_mutants("standard", (7,), catalogue=catalogue, only=SOME[slot]))
    assert [row.name for row in rows if not row.killed] == []
    assert sorted(row.name for row in rows) == sorted(SOME[slot])
    assert {row.family for row in rows} == {slot}


def test_families_are_slots(catalogue):
    rows = list(evaluate_law_mutants("quick", (0,), {"norm"}, catalogue, only=["layer_norm_unbiased", "relu_leaky"]))
    assert [row.name for row in rows] == ["layer_norm_unbiased"]


KILLED_BY = {
    "rotary_bf16_positions": "relative",
    "rotary_remembers": "chunks",
    "shaw_first_row": "batch_rows",
    "shaw_reads_query": "reads_query",
    "sinusoidal_scaled": "additive",
    "sinusoidal_flops": "flops",
    "learned_clamped": "max_len",
    "learned_shape": "declaration",
    "layer_norm_tokens": "tokens",
    "layer_norm_no_mean": "shift_invariant",
    "layer_norm_writes": "outputs",
    "rms_norm_weight_twice": "formula",
    "rms_norm_detached": "slopes_hold",
    "batch_norm_padding": "padding",
    "batch_norm_undeclared": "declaration",
    "pre_twice": "uses",
    "pre_mixes": "tokens",
    "pre_final_norm": "normed_output",
    "deepnorm_skip_ignored": "skip",
    "silu_overflows": "extremes",
    "relu_detached": "slopes_hold",
    "glu_as_softmax": "elementwise",
    "ffn_tokens": "ffn_tokens",
    "additive_weight": "declaration",
    "general_training": "outputs",
    "additive_mean_key": "pairs",
    "general_position": "steps",
    "general_groups": "grouped",
    "general_strides": "layouts",
    "additive_detached_key": "gradients",
    "additive_half_slope": "slopes_hold",
    "concat_wide_weights": "dtypes",
    "general_scaled": "dot_product",
    "gru_in_place": "outputs",
    "gru_batch_mean": "others",
    "gru_position_scale": "steps",
    "lstm_flat_weights": "sequence",
    "gru_second_input": "gradients",
    "lstm_detached": "slopes_hold",
    "rnn_rounded": "dtypes",
    "rnn_normed": "zeros",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED_BY)
def test_it_is_killed_by_the_law_that_it_breaks(name, catalogue):
    """By that law alone: a third-party part has no known equation."""
    mutant = next(mutant for mutant in mutants() if mutant.name == name)
    (report,) = reports(mutant, "standard", (3,), catalogue, stop_at_first=False, laws=[KILLED_BY[name]])
    assert [found.check for found in report.findings] == [KILLED_BY[name]]
    assert report.findings[0].message
