"""Choices of tiles that the table has, compiled ahead of time for GPUs that need not be here: they fit, do not spill, and their
machine code has products on tensor cores that do not wait for each other, copies that run ahead, and no read of a register that
nothing wrote.

A program in Triton's intermediate language that bench/results/fused_sass.json has is not compiled again: what became of it is
in the file. `TFKIT_CASES=all pytest -m "" plugins/tfkit-fused/tests/test_compile.py` compiles every choice. Run it after a
change of the table or of a kernel.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import tfkit_fused
import torch

pytest.importorskip("triton", reason="not run: Triton, of which kernels are made, is not installed")

import aot
from launches import CAPABILITIES, CHOICES, KINDS, UNMEASURED, Choice, K, call, cell, cells, launched, launches, named
from tfkit_fused import launch
from tfkit_fused.tiles import ROWS, SPECIALISED, Tiles, of_row
from triton import knobs

from tfkit.doctor.ptxas import version_of
from tiers import EVERY_CASE

pytestmark = [
    pytest.mark.skipif(tfkit_fused.INTERPRETED, reason="interpreted kernels are not compiled"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]
SHARED = {100: 232_448, 90: 232_448, 80: 101_376}
"""Bytes of shared memory that one program may have: Blackwell, Hopper, and the least of the devices from sm_80 on."""
KNOWN = {} if EVERY_CASE else aot.recorded_costs()
"""What is not compiled again, by the names of programs."""
SPILLED = {"plain": 48, "position": 48, "dropout": 48, "rich": 192}
"""Bytes of registers that may be spilled, by features of the call, by Triton 3.6 and by 3.9, which spill in other places."""
WIDE = 320
"""The same for gradients of biases in 16 bits with heads wider than 128, which no tile avoids."""


def pairs(choice: Choice) -> set[tuple[Any, ...]]:
    sm, row, described, _ = choice
    return set(combinations(enumerate((sm, row.kernel, row.bytes, row.width, row.features, row.short, described)), 2))


def covering(choices: list[Choice]) -> list[Choice]:
    """Few of the choices that have every pair that any of them has: always the one with most pairs that are missing."""
    missing = set().union(*map(pairs, choices))
    found = []
    while missing:
        found.append(max(choices, key=lambda choice: len(pairs(choice) & missing)))
        missing -= pairs(found[-1])
    return found


COMPILED = CHOICES if EVERY_CASE else covering(UNMEASURED)


def check(cost: aot.Cost, choice: Choice) -> None:
    """It fits, does not spill, and its products and copies are those of the architecture."""
    capability, row, described, tiles = choice
    assert cost.shared <= SHARED[capability], cost
    wide = row.kernel in ("bias", "diagonals") and (row.bytes, row.width) == (2, 256)
    assert cost.spilled <= (WIDE if wide else SPILLED[row.features]), cost
    assert not cost.advisories, cost.advisories
    assert not cost.wrong, cost.wrong
    if row.bytes == 2 and row.kernel not in ("bias", "diagonals"):
        assert cost.loops, "no loop multiplies on tensor cores"
        along = tiles.keys if row.kernel in ("keys", "together") else tiles.queries
        wide_enough = capability >= 90 and along >= 64 and row.kernel != "decode"
        assert all(loop["wgmma" if wide_enough else "mma"] for loop in cost.loops), cost.loops
        assert all(loop["tma" if described else "cp.async"] for loop in cost.loops) or tiles.stages == 1, cost.loops


@pytest.mark.exhaustive
@pytest.mark.parametrize("choice", [pytest.param(each, id=named(each)) for each in COMPILED])
def test_it_compiles_fits_and_does_not_spill(choice):
    capability, row, described, tiles = choice
    check(aot.cost_of(launched(row, capability, tiles=tiles, described=described), capability, KNOWN), choice)


@pytest.mark.exhaustive
def test_whatever_is_taken_unmeasured_fits_and_does_not_spill_by_the_record():
    """That the record is of these kernels is tested by its cells."""
    known, choices = aot.recorded_costs(), aot.record_of().get("choices", {})
    if not known:
        pytest.skip("not run: the record is of another release of Triton")
    assert choices.keys() == {named(choice) for choice in UNMEASURED}
    for choice in UNMEASURED:
        check(known[choices[named(choice)]], choice)


RENEW = "run `python bench/fused_sass.py --json bench/results/fused_sass.json`"
MOST_WAITS = {"forward": 1, "specialised": 2, "queries": 2, "keys": 4, "decode": 0}
"""For products in one step: values' in the forward pass overlap the next step, those of specialised warps the other group's;
the backward also needs its own scores."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_machine_code_is_what_the_record_says(capability):
    """A record that has other programs is stale, and says nothing about the tiles that are not compiled here: RENEW, and look
    at what has changed."""
    found, known = aot.record_of(), aot.recorded_costs()
    more, stale = {}, []
    every = list(cells(capability))
    for each in every:
        cost = aot.cost_of(each.launch, capability, KNOWN)
        loop = cost.step
        assert not cost.advisories + cost.wrong, (each.name, cost.advisories, cost.wrong)
        most = 2 if each.kernel == "keys" and loop["tma"] else MOST_WAITS[each.kernel]
        assert loop["wait"] <= most, (each.name, loop)
        assert loop["cp.async"] + loop["tma"] > 0, (each.name, loop)
        if known and aot.program_of(each.launch, capability) not in known:
            stale.append(each.name)
        recorded = aot.Cost.read(found["programs"][found["cells"][each.name][f"sm_{capability}"]]).step.instructions
        if loop.instructions > 1.02 * recorded:
            more[each.name] = recorded, loop.instructions
    assert {name for name, row in found["cells"].items() if f"sm_{capability}" in row} == {each.name for each in every}
    assert not more, more
    assert not stale, (RENEW, stale)


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize(
    ("kernel", "width", "kind"), [("forward", 64, "dense"), ("queries", 64, "T5"), ("keys", 128, "causal")]
)
def test_a_program_of_the_record_is_compiled_as_recorded(kernel, width, kind, capability):
    known = aot.recorded_costs()
    if not known:
        pytest.skip("not run: the record is of another release of Triton")
    made = cell(kernel, width, kind, KINDS[kind], capability=capability).launch
    name = aot.program_of(made, capability)
    assert name in known, RENEW
    assert aot.compiled(made, capability) == known[name]


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [64, 128])
def test_specialised_warps_are_two_groups_that_multiply_and_one_that_copies(width):
    for shape in SPECIALISED:
        cost = aot.cost_of(cell("specialised", width, "padded", KINDS["padded"], Tiles(*shape)).launch, 90, KNOWN)
        assert (cost.spilled, cost.advisories, cost.shared <= SHARED[90]) == (0, (), True), cost
        kinds = sorted((loop["tma"], loop["wgmma"] > 0, loop["wait"]) for loop in cost.loops)
        assert kinds == [(0, True, 2), (0, True, 2), (2, False, 0)], cost.loops


@pytest.mark.exhaustive
def test_the_gate_finds_the_reads_before_writes_of_ptxas_where_numbers_of_a_row_are_apart():
    """By ptxas 12.8.93, which makes them: of rows that the launch copies (`launch._is_plain`), compiled as if it did not."""
    if version_of(Path(knobs.nvidia.ptxas.path)) != "12.8.93":
        pytest.skip("not run: Triton has another ptxas than 12.8.93")
    wanted = ("forward", 2, 64, "plain", True)
    row = next(row for row in ROWS if (row.kernel, row.bytes, row.width, row.features, row.short) == wanted)
    value = torch.zeros(2, 4, 53, 24, dtype=torch.bfloat16)
    query, key = (torch.zeros(2, heads, 24, length, dtype=torch.bfloat16).mT for heads, length in ((8, 37), (4, 53)))
    made = {}
    for copies in (False, True):
        with patch.object(launch, "_is_plain", (lambda tensor: True) if not copies else launch._is_plain):
            given = {"query": query, "key": key, "value": value}
            made[copies] = aot.compiled(launched(row, 90, tiles=Tiles(64, 64, 4, 3), described=False, **given), 90).wrong
    assert any("which nothing wrote" in each for each in made[False]), made
    assert not made[True], made


@pytest.mark.exhaustive
def test_programs_are_told_apart_by_options_and_architectures():
    row = ROWS[0]
    names = [aot.program_of(launched(row, 90, tiles=tiles), capability) for tiles in of_row(row, 9) for capability in (90, 100)]
    warps = launched(row, 90)
    names.append(aot.program_of(replace(warps, named={**warps.named, "num_stages": 7}), 90))
    assert len(set(names)) == len(names)


def test_names_of_values_are_no_part_of_a_program():
    program = "@f(%q: i32, %c-1_i64: i64)\n%x = add %q, %c-1_i64 : i64\n"
    program += "%y:2 = for %i = %q iter_args(%a = %x) {\n yield %a, %i }\n%x#0"
    renamed = program.replace("%q", "%query").replace("%x", "%sum_7").replace("%a", "%total")
    assert aot.numbered(renamed) == aot.numbered(program)
    assert aot.numbered(program.replace("add %q", "add %c-1_i64")) != aot.numbered(program)
    twice = "%a = 1\nif {%b = %a\n} else {%c = %a\n use %c}"
    assert aot.numbered(twice.replace("%c", "%b")) == aot.numbered(twice)


UNALIGNED = torch.zeros(2 * 8 * 64 * 64 + 1, dtype=torch.bfloat16)[1:].view(2, 8, 64, 64)
FEATURES = {
    "linear": {"bias": torch.zeros(8), "bias_kind": "linear"},
    "distance": {"bias": torch.zeros(8, 33), "bias_kind": "distance"},
    "dense": {"bias": torch.zeros(1, 8, 64, K), "bias_kind": "dense"}, "softcap": {"softcap": 3.0},
    "dropout": {"seed": torch.zeros(1, dtype=torch.int64), "dropout": 0.1},
    "offsets": {"offsets": torch.zeros(2, dtype=torch.int64)},
    "visible": {"visible": torch.ones(2, 8, 64, K, dtype=torch.bool)}, "key_visible": {"key_visible": torch.ones(2, K) > 0},
    "segments": {"query_segments": torch.zeros(2, 64).long(), "key_segments": torch.zeros(2, K).long()},
    "no left": {"left": None}, "no right": {"right": None}, "no key lengths": {"key_lengths": None},
    "no query lengths": {"query_lengths": None},
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", ["forward", "queries", "keys", "together"])
def test_no_feature_is_lost_by_the_compiler(kernel):
    """Each gives another program, forward and backward: constants that Triton forgets would be features that are ignored."""
    row = next(
        row for row in ROWS if (row.kernel, row.bytes, row.width, row.features) == (kernel, 2, 64, "plain") and not row.short
    )
    programs = {"plain": aot.intermediate(launched(row, 90), 90)}
    for name, changes in FEATURES.items():
        programs[name] = aot.intermediate(launched(row, 90, **changes), 90)
    assert len(set(programs.values())) == len(programs), sorted(programs, key=programs.get)


@pytest.mark.exhaustive
def test_only_the_backward_in_one_kernel_adds_with_atomics():
    for kernel in ("queries", "keys", "together"):
        rows = [row for row in ROWS if (row.kernel, row.bytes, row.width) == (kernel, 2, 64)]
        for row in rows:
            found = aot.intermediate(launched(row, 90), 90)
            assert found.count("tt.atomic_rmw") == (kernel == "together"), row


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["row_sums", "join_chunks"])
def test_the_small_kernels_compile(name):
    row = next(row for row in ROWS if row.kernel == ("queries" if name == "row_sums" else "decode"))
    cost = aot.compiled(launched(row, 90, name), 90)
    assert (cost.spilled, cost.shared < SHARED[80]) == (0, True)


@pytest.mark.exhaustive
def test_lengths_and_offsets_are_no_part_of_a_compiled_kernel():
    """Q, K and the offset are not specialised on, so that no batch recompiles."""
    row = ROWS[0]
    kernel = launched(row, 90).kernel
    plain = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
    assert {"Q", "K", "offset"} <= plain


CHANGED = {
    "as it is": {}, "other numbers": {"offset": 1600, "scale": 0.5, "dropout": 0.0}, "unaligned": {"query": UNALIGNED},
    "longer": {"query": torch.zeros(2, 8, 2049, 64, dtype=torch.bfloat16)}, "negative scale": {"scale": -0.1},
    "transposed": {"query": torch.zeros(2, 2000, 8, 64, dtype=torch.bfloat16).transpose(1, 2)}, "window of 16": {"left": 16},
    "window of 1": {"left": 1}, "window of none": {"left": 1, "right": -2},
    "float16": {each: torch.zeros(2, 8, 64, 64, dtype=torch.float16) for each in ("query", "key")},
    "softcap": {"softcap": 2.0}, "table": FEATURES["distance"],
    "table of 32": {**FEATURES["distance"], "bias": torch.zeros(8, 32)},
    "table from 16": {**FEATURES["distance"], "bias_low": 16}, "dense": FEATURES["dense"], "dropout": FEATURES["dropout"],
    "offsets": FEATURES["offsets"], "int32 offsets": {"offsets": torch.zeros(2, dtype=torch.int32)},
}  # fmt: skip


@pytest.mark.parametrize("copies", [False, True], ids=["addresses", "descriptors"])
def test_launches_with_one_key_are_specialised_in_one_way(copies, launching):
    """By Triton's own word: what the key of a launch does not see would run a program that was compiled for something else."""
    launching(tma=copies, hopper=copies)
    row = next(row for row in ROWS if (row.kernel, row.bytes, row.width, row.features) == ("queries", 2, 64, "plain"))
    specialised: dict[Any, set[str]] = {}
    for changes, begins in product(CHANGED.values(), (None, 0, 1)):
        for recorded in launches(replace(call(row), **changes), begins=begins):
            with aot.driven(recorded.kernel, 90):
                *_, binder = recorded.kernel.create_binder()
                _, specialisation, _ = binder(*recorded.arguments, **recorded.named)
            specialised.setdefault((recorded.kernel, recorded.key), set()).add(repr(specialisation))
    assert len(specialised) > len(CHANGED)
    assert {len(each) for each in specialised.values()} == {1}


ROWS_OF = torch.zeros(2, 8, 64, 64, dtype=torch.bfloat16)


@pytest.mark.parametrize(("rows", "described"), [
    (ROWS_OF, True), (ROWS_OF.transpose(1, 2), True), (ROWS_OF[:, :1].expand(2, 8, 64, 64), True), (ROWS_OF[..., 8:], True),
    (UNALIGNED, False), (ROWS_OF[..., :63].contiguous(), False), (ROWS_OF.mT, False), (ROWS_OF[..., 4:], False),
    (ROWS_OF[:, :, :1].expand(2, 8, 64, 64), False),
])  # fmt: skip
def test_the_hardware_copies_rows_at_multiples_of_16_bytes(rows, described, launching):
    launching(tma=True)
    plain = next(row for row in ROWS if (row.kernel, row.bytes, row.width, row.features) == ("forward", 2, 64, "plain"))
    for name in ("key", "value"):
        given = replace(call(plain), **{"key": ROWS_OF, "value": ROWS_OF, name: rows})
        assert launch._describes(given.key, given.value) is described
