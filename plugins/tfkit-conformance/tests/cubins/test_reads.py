"""Reads before writes: each rule by a kernel of a few instructions that breaks it, and by one that does not."""

import pytest

from cubins.listings import kernel, listing
from tfkit_conformance.machine_code.check import findings
from tfkit_conformance.machine_code.listing import kernels_of
from tfkit_conformance.machine_code.operands import effect, names_of
from tfkit_conformance.machine_code.reads import reads_before_writes


def unwritten(*lines: str) -> dict[int, tuple[str, ...]]:
    return {each.instruction.address: each.registers for each in reads_before_writes(kernel(*lines))}


def test_what_nothing_wrote_is_found_with_its_place():
    [found] = findings(kernel("UMOV UR4, 0x1", "UIADD3 UR12, UP0, UR12, UR4, URZ", "EXIT"))
    assert (found.check, found.kernel, found.address) == ("reads before writes", "k", 0x10)
    assert found.instruction == "UIADD3 UR12, UP0, UR12, UR4, URZ"
    assert (found.what, found.source) == ("reads UR12, which nothing wrote", "/home/kernels/k.py:7")


def test_a_branch_over_the_write_is_a_path_without_it():
    kept = ("S2R R0, SR_TID.X", "ISETP.NE.AND P0, PT, R0, RZ, PT", "@P0 BRA `(.L_x_0)", "MOV R1, 0x1", ".L_x_0:")
    assert unwritten(*kept, "IADD3 R2, R1, R1, RZ", "EXIT") == {0x40: ("R1",)}
    other = ("BRA `(.L_x_1)", ".L_x_0:", "MOV R1, 0x2", ".L_x_1:")
    assert unwritten(*kept[:4], *other, "IADD3 R2, R1, R1, RZ", "EXIT") == {}


def test_a_loop_reads_in_its_first_step_what_it_writes_later():
    loop = (".L_x_0:", "IADD3 R1, R1, 0x1, RZ", "ISETP.GE.AND P0, PT, R1, 0x10, PT", "@!P0 BRA `(.L_x_0)", "EXIT")
    assert unwritten(*loop) == {0x0: ("R1",)}
    assert unwritten("MOV R1, RZ", *loop) == {}


def test_what_no_path_reaches_is_not_read():
    assert unwritten("EXIT", ".L_x_0:", "BRA `(.L_x_0)", "IADD3 R2, R1, R1, RZ") == {}
    assert unwritten("@P0 EXIT", "EXIT") == {0x0: ("P0",)}
    assert unwritten("@!PT LDS RZ, [R9]", "EXIT") == {}


def test_branches_have_their_condition_before_their_name_or_as_an_operand():
    begin = ("UISETP.NE.AND UP0, UPT, URZ, 0x1, UPT", "BRA.U UP0, `(.L_x_0)", "MOV R1, 0x1", ".L_x_0:", "MOV R2, 0x1")
    assert unwritten(*begin, "IADD3 R2, R1, R2, RZ", "EXIT") == {0x40: ("R1",)}
    assert unwritten("BRA `(.L_x_0)", "IADD3 R1, R1, R1, RZ", ".L_x_0:", "EXIT") == {}


def test_a_write_under_a_predicate_counts():
    """Compilers leave registers unwritten in threads that do not use them."""
    load = ("S2R R0, SR_TID.X", "ISETP.NE.AND P0, PT, R0, RZ, PT", "@P0 LDS R1, [R0]")
    assert unwritten(*load, "@P0 IADD3 R2, R1, R1, RZ", "SHFL.BFLY PT, R3, R1, 0x1, 0x1f", "EXIT") == {}
    assert unwritten("@P0 MOV R1, 0x1", "EXIT") == {0x0: ("P0",)}


def test_a_copy_is_no_use_and_passes_on_what_it_copies():
    assert unwritten("R2UR UR4, R9", "EXIT") == {}
    assert unwritten("R2UR UR4, R9", "UIADD3 UR5, UR4, 0x1, URZ", "EXIT") == {0x10: ("UR4",)}
    assert unwritten("MOV R9, 0x1", "R2UR UR4, R9", "UIADD3 UR5, UR4, 0x1, URZ", "EXIT") == {}


def test_the_halves_and_the_flags_of_a_register_are_written_in_place():
    assert unwritten("PRMT R1, RZ, 0x7610, R1", "STS.U16 [RZ], R1", "EXIT") == {}
    assert unwritten("PRMT R1, RZ, 0x1076, R1", "EXIT") == {0x0: ("R1",)}
    assert unwritten("LOP3.LUT R1, R1, 0xfffffeff, RZ, 0xc0, !PT", "EXIT") == {}
    assert unwritten("LOP3.LUT R1, R1, 0xff, RZ, 0xc0, !PT", "EXIT") == {0x0: ("R1",)}


def test_a_called_function_is_analysed_and_writes_what_it_may_write():
    called = ("function:", "IADD3 R3, R2, 0x1, RZ", "@P0 MOV R4, 0x1", "RET.REL.NODEC R20 `(k)")
    begin = ("MOV R2, 0x1", "ISETP.NE.AND P0, PT, R2, RZ, PT", "CALL.REL.NOINC `(function)", "IADD3 R5, R3, R4, RZ", "EXIT")
    assert unwritten(*begin, *called) == {}
    assert unwritten(*begin[1:], *called) == {0x0: ("R2",), 0x40: ("R2",)}
    assert unwritten("CALL.ABS.NOINC `(printf)", "IADD3 R5, R4, R4, RZ", "EXIT") == {}


@pytest.mark.parametrize(("line", "reads", "writes"), [
    ("LDG.E.128 R4, desc[UR8][R2.64+0x10]", "R2 R3 UR8 UR9", "R4 R5 R6 R7"),
    ("STG.E.64 desc[UR8][R2.64], R6", "R2 R3 R6 R7 UR8 UR9", ""),
    ("LDSM.16.M88.4 R4, [R2+UR6]", "R2 UR6", "R4 R5 R6 R7"),
    ("IMAD.WIDE.U32 R4, R2, R3, R6", "R2 R3 R6 R7", "R4 R5"),
    ("IADD3 R4, P1, P2, R5, R6, RZ", "R5 R6", "R4 P1 P2"),
    ("IADD3.X R4, PT, PT, R5, UR6, RZ, P1, !P2", "R5 UR6 P1 P2", "R4"),
    ("UIADD3.64 UR4, UPT, UPT, UR8, UR10, URZ", "UR8 UR9 UR10 UR11", "UR4 UR5"),
    ("LOP3.LUT P3, RZ, R4, 0xff, RZ, 0xc0, !PT", "R4", "P3"),
    ("ISETP.GE.AND.EX P1, PT, R4, R5, P2, P3", "R4 R5 P2 P3", "P1"),
    ("PLOP3.LUT P0, P1, P2, P3, UP1, 0x80, 0x8", "P2 P3 UP1", "P0 P1"),
    ("SEL R4, R5.reuse, RZ, !P0", "R5 P0", "R4"),
    ("SHFL.BFLY PT, R4, R5, 0x1, 0x1f", "R5", "R4"),
    ("VOTEU.ANY UR4, UPT, P1", "P1", "UR4"),
    ("P2R R4, PR, RZ, 0x3", "P0 P1", "R4"),
    ("R2P PR, R4, 0x11", "R4", "P0 P4"),
    ("CS2R R4, SRZ", "", "R4 R5"),
    ("DFMA R4, R6, R8, -R10", "R6 R7 R8 R9 R10 R11", "R4 R5"),
    ("F2F.F32.F64 R4, R6", "R6 R7", "R4"),
    ("FFMA2 R4, R6.F32x2.HI_LO, R8.F32, R10.F32x2.HI_LO", "R6 R7 R8 R10 R11", "R4 R5"),
    ("HMMA.16816.F32.BF16 R4, R8, R12, R4", "R4 R5 R6 R7 R8 R9 R10 R11 R12 R13", "R4 R5 R6 R7"),
    ("HMMA.1688.F16 R4, R8, R12, RZ", "R8 R9 R12", "R4 R5"),
    ("IMMA.16832.S8.S8 R4, R8, R12, RZ", "R8 R9 R10 R11 R12 R13", "R4 R5 R6 R7"),
    ("DMMA.8x8x4 R4, R8, R10, RZ", "R8 R9 R10 R11", "R4 R5 R6 R7"),
    ("HGMMA.64x8x16.F32.BF16 R4, gdesc[UR8], RZ, !UPT", "UR8 UR9 UR10 UR11", "R4 R5 R6 R7"),
    ("HGMMA.64x8x16.F32.BF16 R4, R8, gdesc[UR8].tnspB, R4, gsb0", "R4 R5 R6 R7 R8 R9 R10 R11 UR10 UR11", "R4 R5 R6 R7"),
    ("HGMMA.64x8x16.F16 R4, gdesc[UR8], R4, UP0", "UR8 UR9 UR10 UR11 UP0", "R4 R5"),
    ("LDTM.x4 R4, tmem[UR8+0x10]", "UR8", "R4 R5 R6 R7"),
    ("UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR12], tmem[UR14], idesc[UR15], UP0", "UR8 UR9 UR10 UR11 UR12 UR14 UR15 UP0", ""),
    ("ATOMG.E.ADD.64.STRONG.GPU PT, R4, desc[UR8][R2.64], R6", "R2 R3 R6 R7 UR8 UR9", "R4 R5"),
    ("SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR8], R4", "R4 UR8", "P1"),
    ("UTMALDG.2D [UR8], [UR12]", "UR8 UR9 UR10 UR11 UR12 UR13", ""),
    ("LDGSTS.E.BYPASS.128 [R4], desc[UR8][R2.64], !P1", "R2 R3 R4 UR8 UR9 P1", ""),
])  # fmt: skip
def test_the_registers_of_an_instruction(line, reads, writes):
    name, operands = line.split(maxsplit=1)
    found = effect(name, tuple(operand.strip() for operand in operands.split(",")))
    assert (set(names_of(found.reads)), set(names_of(found.writes))) == (set(reads.split()), set(writes.split()))


def test_products_that_wait_for_each_other_without_need_are_found():
    product, wait = "HGMMA.64x8x16.F32.BF16 R4, gdesc[UR8], {}, gsb0", "WARPGROUP.DEPBAR.LE gsb0, 0x0"
    begin = ("ULDC.128 UR8, c[0x0][0x0]", product.format("RZ, !UPT"), wait)
    [found] = findings(kernel(*begin, product.format("R4"), "EXIT"))
    assert (found.check, found.address) == ("serialised products", 0x30)
    assert findings(kernel(*begin, "FADD R4, R4, 1", product.format("R4"), "EXIT")) == []
    assert findings(kernel(*begin[:2], product.format("R4"), wait, "EXIT")) == []


def test_local_memory_is_found():
    found = findings(kernel("LDC R1, c[0x0][0x28]", "MOV R2, 0x1", "STL [R1], R2", "LDL.LU R3, [R1]", "EXIT"))
    assert [(each.check, each.address) for each in found] == [("local memory", 0x20), ("local memory", 0x30)]


def test_shared_memory_beyond_what_there_is_is_found_at_known_addresses():
    begin = ("UMOV UR4, 0x400", "S2UR UR5, SR_CgaCtaId", "ULEA UR4, UR5, UR4, 0x18", "S2R R0, SR_TID.X")
    lines = ("LDS R2, [UR4+0x1000]", "LDS R3, [0x2000]", "LDS R4, [R0+UR4+0x8000]", "LDS R5, [UR4+0xffc]", "EXIT")
    found = findings(kernel(*begin, *lines), shared=4096)
    assert [(each.check, each.address) for each in found] == [("shared memory", 0x40), ("shared memory", 0x50)]


def test_a_function_that_is_no_kernel_is_not_analysed_alone():
    assert kernels_of(listing("EXIT").replace("STO_CUDA_ENTRY STV_DEFAULT", "STV_DEFAULT")) == []
