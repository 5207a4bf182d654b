"""Every built-in of the slots with laws keeps its laws, with many options: the laws alarm nobody who is right."""

from __future__ import annotations

import pytest

from tfkit import InputError
from tfkit_conformance.laws import LAWS, check_part

YARN = {"kind": "yarn", "factor": 4.0, "trained_len": 64}
LLAMA = {"kind": "llama3", "factor": 8.0, "trained_len": 8192}
WRITTEN = {
    ("position", "rotary_half"): [
        {"dims": 4}, {"dims": 64}, {"base": 500000.0, "scaling": LLAMA}, {"scaling": YARN},
        {"scaling": {**YARN, "truncate": False, "attention_factor": 2.0}}, {"scaling": {"kind": "ntk", "factor": 2.0}},
    ],
    ("position", "rotary_interleaved"): [{"dims": 4, "scaling": YARN}, {"scaling": {"kind": "linear", "factor": 4.0}}],
    ("position", "relative_t5"): [{"buckets": 8, "max_distance": 20}, {"buckets": 7, "max_distance": 11}],
    ("position", "relative_shaw"): [{"max_distance": 1}, {"max_distance": 100}],
    ("position", "sinusoidal"): [{"base": 50.0, "combine": "concat", "count": "visible", "last_frequency": "inclusive"}],
    ("position", "learned"): [{"max_len": 1}, {"max_len": 2, "offset": 2, "count": "visible"}],
    ("position", "sinusoidal_halves"): [{"first_pair": 1}],
    **{("placement", name): [{"residual": False}] for name in ("post", "pre", "none")},
    ("norm", "layer_norm"): [{"eps": 1e-12}, {"eps": 0.1, "bias": False}],
    ("norm", "batch_norm"): [{"eps": 0.1, "affine": False}],
    ("norm", "rms_norm"): [{"eps": 1e-12}, {"eps": 0.1, "unit_offset": True}],
}  # fmt: skip


def names(catalogue, slot):
    """The parts that have code of their own: the score `dot` is part of the contract of attention."""
    return [name for name in catalogue.names(slot) if (slot, name) != ("score", "dot")]


@pytest.mark.slow
@pytest.mark.parametrize("slot", LAWS)
def test_every_builtin_satisfies_its_laws(slot, catalogue):
    for name in names(catalogue, slot):
        report = check_part(slot, name, profile="quick", catalogue=catalogue)
        report.raise_for_failures()
        assert report.verdict == "CONFORMANT", (name, report.missing)


@pytest.mark.slow
@pytest.mark.parametrize(("slot", "name"), WRITTEN)
def test_builtins_satisfy_their_laws_with_given_options(slot, name, catalogue):
    for options in WRITTEN[slot, name]:
        report = check_part(slot, name, profile="quick", catalogue=catalogue, options=options, seed=5)
        report.raise_for_failures()
        assert report.verdict == "CONFORMANT", (options, report.missing)
        assert report.options.items() >= {key: value for key, value in options.items() if key != "scaling"}.items()


def test_a_table_of_one_position_leaves_the_report_complete(catalogue):
    """No order and no room for padding: the ledger says why, and nothing is missing."""
    report = check_part("position", "learned", profile="quick", catalogue=catalogue, options={"max_len": 1})
    refused = {row.cell: row.refused for row in report.ledger if row.refused}
    assert set(refused) == {"acts", "counts_padding"}
    assert not {check.name for check in report.checks} & set(refused)


@pytest.mark.slow
@pytest.mark.parametrize("slot", LAWS)
def test_the_ledger_counts_every_law_in_every_dtype(slot, catalogue):
    report = check_part(slot, names(catalogue, slot)[0], profile="quick", dtypes=["float32", "float16"], catalogue=catalogue)
    for row in report.ledger:
        assert row.counts
        assert all(row.counts.values())
    assert any(set(row.counts) == {"float32", "float16"} for row in report.ledger)


def test_the_dot_product_has_no_code_of_its_own(catalogue):
    with pytest.raises(InputError, match=r"TFK094.*`dot` is the dot product of the attention contract"):
        check_part("score", "dot", catalogue=catalogue)
