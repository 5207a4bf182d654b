"""What is collected in the machine code of a kernel.

reads before writes    registers that no instruction wrote on some path (`reads`): a wrong result, or an invalid address
serialised products    a product on tensor cores that waits for the one before it, though nothing reads that one's sum first
local memory           loads and stores of local memory: registers that are spilled, or arrays with computed indices
shared memory          an access at a known address beyond what the kernel may have
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .cubin import disassembled, read_cubin, shared_of, wrong
from .listing import Block, Instruction, Kernel, kernels_of
from .operands import GROUP_PRODUCTS, effect
from .reads import reads_before_writes

CHECKS = ("reads before writes", "serialised products", "local memory", "shared memory")
SHARED = {70: 98_304, 72: 98_304, 75: 65_536, 80: 166_912, 87: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448,
          101: 232_448, 103: 232_448, 110: 232_448, 120: 101_376, 121: 101_376}  # fmt: skip
"""Bytes of shared memory that one block may have, by architecture."""
_ARCHITECTURE = re.compile(r"EF_CUDA_(?:VIRTUAL_)?SM\(?(?:EF_CUDA_SM)?(\d+)")
_SHARED_ACCESS = re.compile(r"LDS|STS|LDSM|STSM|ATOMS")
_ADDRESS = re.compile(r"\[(?:(UR\d+|RZ|URZ)\+?)?(0x[0-9a-f]+)?\]")


@dataclass(frozen=True)
class Finding:
    """One finding: its check, the kernel, address and text of the instruction, what is wrong, and the line of the source."""

    check: str
    kernel: str
    address: int
    instruction: str
    what: str
    source: str | None


def check_cubin(path: Path, nvdisasm: Path, seconds: float) -> dict[str, list[Finding]]:
    """The findings by kernel. Raises InputError for a file that cannot be checked."""
    listing = disassembled(read_cubin(path), path, nvdisasm, seconds)
    kernels = kernels_of(listing)
    if not kernels:
        raise wrong(path, "no kernel in it", "name a cubin that is linked and has an .entry")
    return {kernel.name: findings(kernel, _limit(listing, shared_of(path))) for kernel in kernels}


def _limit(listing: str, declared: int | None) -> int | None:
    """Bytes of shared memory: what Triton declared, else the most that the architecture has, where that is known."""
    if declared is not None:
        return declared
    flags = _ARCHITECTURE.search(listing)
    return SHARED.get(int(flags[1])) if flags else None


def findings(kernel: Kernel, shared: int | None = None) -> list[Finding]:
    """In the order of the code."""
    collected = [
        _finding("reads before writes", kernel, read.instruction, f"reads {', '.join(read.registers)}, which nothing wrote")
        for read in reads_before_writes(kernel)
    ]
    for block in kernel.blocks:
        collected += [_finding("serialised products", kernel, instruction, what) for instruction, what in _serialised(block)]
        for instruction in block.instructions:
            if re.match(r"(LDL|STL)\b", instruction.name):
                verb = "stores to" if instruction.name.startswith("STL") else "loads from"
                collected.append(_finding("local memory", kernel, instruction, f"{verb} local memory"))
    if shared is not None:
        collected += [_finding("shared memory", kernel, instruction, what) for instruction, what in _beyond(kernel, shared)]
    return sorted(collected, key=lambda finding: (finding.address, CHECKS.index(finding.check)))


def _finding(check: str, kernel: Kernel, instruction: Instruction, what: str) -> Finding:
    return Finding(check, kernel.name, instruction.address, instruction.text, what, instruction.source)


def _serialised(block: Block) -> Iterator[tuple[Instruction, str]]:
    """Products of warp groups that add to one sum, with a wait for all between them and nothing that uses the sum."""
    last, waited = 0, False
    for instruction in block.instructions:
        done = effect(instruction.name, instruction.operands)
        if instruction.name.split(".")[0] in GROUP_PRODUCTS:
            if waited and done.writes == last:
                yield instruction, "waits for the product before it, whose sum nothing reads in between"
            last, waited = done.writes, False
        elif instruction.name.startswith("WARPGROUP.DEPBAR"):
            waited = waited or instruction.operands[-1:] == ("0x0",)
        elif (done.reads | done.writes) & last:
            last, waited = 0, False


def _beyond(kernel: Kernel, shared: int) -> Iterator[tuple[Instruction, str]]:
    """Accesses whose address is a constant, or lies a constant behind the beginning of shared memory: a uniform register that
    is written once, as address of the block within its cluster. Other addresses are known at run time only."""
    written = Counter[int]()
    begins = set[str]()
    for instruction in kernel.instructions():
        done = effect(instruction.name, instruction.operands)
        written[done.writes] += 1
        if instruction.name == "ULEA" and instruction.operands[-1:] == ("0x18",):
            begins.add(instruction.operands[0])
    ones = {
        name for name in begins
        if sum(count for mask, count in written.items() if mask & effect("UMOV", (name, "0x0")).writes) == 2  # UMOV 0x400, ULEA
    }  # fmt: skip
    for instruction in kernel.instructions():
        if not _SHARED_ACCESS.match(instruction.name):
            continue
        operand = next((_ADDRESS.fullmatch(operand) for operand in instruction.operands if operand.startswith("[")), None)
        if operand is None or not (operand[1] in (None, "RZ", "URZ") or operand[1] in ones):
            continue
        at = int(operand[2] or "0", 16)
        if at >= shared and instruction.guard != "!PT":
            yield instruction, f"shared memory at byte {at:,}, and the kernel has {shared:,}"
