"""The support table of the backends."""

import pytest

from tfkit import Catalogue
from tfkit.catalogue import Registration
from tfkit.plugin import AttentionBackend, Capabilities, Device, Numerics, Range
from tfkit.view.plugins_data import backends_data, support_table
from tfkit.view.plugins_text import BackendsText

NOTHING = AttentionBackend(name="acme.nothing", summary="", attend="a:b", capabilities=Capabilities())
MUCH = AttentionBackend(
    name="acme.much",
    summary="",
    attend="a:b",
    capabilities=Capabilities(
        devices=[Device(kind="cpu"), Device(kind="cuda", minimum_capability=(9, 0))],
        dtypes={"float32", "bfloat16"},
        head_dim=Range(minimum=16, maximum=256, multiple=8),
        query_length=Range(),
        weights="detached",
        backward=True,
        numerics=Numerics(scores="storage", gradients="storage", tf32=True),
    ),
)


def catalogue_of(*entries):
    return Catalogue({"backend": {entry.name: Registration(entry, "acme", "acme") for entry in entries}})


def test_every_axis_shows_its_declaration():
    names, rows = support_table(catalogue_of(NOTHING, MUCH))
    assert names == ["acme.much", "acme.nothing"]
    table = {axis: (much, nothing) for axis, much, nothing in rows}
    assert list(table) == [name.replace("_", " ") for name in Capabilities.model_fields]
    assert table["devices"] == ("cpu, cuda from sm_90", "no")
    assert table["dtypes"] == ("bfloat16, float32", "no")
    assert table["head dim"] == ("16 to 256, multiples of 8", "no")
    assert table["query length"] == ("any", "no")
    assert table["weights"] == ("detached", "no")
    assert table["backward"] == ("yes", "no")
    assert table["numerics"][0] == "rounds scores, probabilities, gradients; TF32 where torch allows it"


def test_json_holds_lists_in_order():
    [much, _] = backends_data(catalogue_of(NOTHING, MUCH))
    assert much["dtypes"] == ["bfloat16", "float32"]
    assert much["devices"][1] == {"kind": "cuda", "minimum_capability": [9, 0]}


def test_the_table_fits_and_cuts_nothing_off(drawn):
    text = drawn(BackendsText(*support_table(catalogue_of(NOTHING, MUCH))), width=80)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "…" not in text
    assert "deterministic backward" in text


@pytest.mark.parametrize("width", range(72, 121))
def test_no_word_is_broken(drawn, width):
    names = ["flash_attn.v2", "a_backend_of_a_long_name.atomic", "eager", *(f"backend.number{number}" for number in range(9))]
    values = ["cuda from sm_80", "causal, key_lengths, query_lengths, visible", "differentiable"]
    rows = [["deterministic backward", *(values[number % 3] for number in range(len(names)))], ["lse", *["yes"] * len(names)]]
    text = drawn(BackendsText(names, rows), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert set(text.split()) == {
        word for each in [*names, *values, "deterministic backward", "lse yes"] for word in each.split()
    }
    assert [text.split().count(name) for name in names] == [1] * len(names)
