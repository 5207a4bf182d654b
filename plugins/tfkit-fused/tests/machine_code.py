"""What ptxas made of a kernel: the instructions of its loops, and those outside of them.

A loop is what a branch backwards encloses. It is counted along one way through its body: of all ways with the most products of
matrices, the one with the fewest instructions, which is that of a tile with no mask and one bias; and the one with the most.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfkit_conformance.machine_code.check import findings
from tfkit_conformance.machine_code.cubin import disassembled, find_nvdisasm
from tfkit_conformance.machine_code.listing import Block, Kernel, kernels_of

KINDS = {
    "wgmma": "HGMMA|QGMMA|IGMMA|UTC[A-Z]*MMA", "mma": "HMMA|IMMA|QMMA", "wait": r"WARPGROUP\.DEPBAR", "cp.async": "LDGSTS",
    "tma": "UTMALDG|UBLKCP", "global loads": "LDG(?!STS)", "shared stores": "STS|STSM", "exp2": r"MUFU\.EX2",
    "multiplications": "FMUL|FFMA", "barriers": r"BAR\.",
    "integers": "U?IADD|U?IMAD|U?LEA|U?ISETP|U?LOP3|U?SHF|U?PLOP3|U?PRMT|U?VIMNMX|U?IMNMX|U?SEL|U?VIADD",
}  # fmt: skip
"""Instructions by the beginning of their names, as nvdisasm writes them for sm_80 to sm_100."""
PRODUCTS = re.compile(f"{KINDS['wgmma']}|{KINDS['mma']}")
WORK = re.compile(f"{PRODUCTS.pattern}|{KINDS['tma']}")


@dataclass(frozen=True)
class Loop:
    """Instructions of one warp for one step of a loop, in all and by kind. `most`: of a step with every branch taken, 0 where
    an older record does not say."""

    instructions: int
    kinds: dict[str, int]
    most: int = field(default=0, compare=False)

    def __getitem__(self, kind: str) -> int:
        return self.kinds.get(kind, 0)


def kernel_of(cubin: bytes) -> Kernel:
    """The one kernel of a cubin."""
    [kernel] = kernels_of(disassembled(cubin, Path("kernel.cubin"), find_nvdisasm()))
    return kernel


def wrong_of(kernel: Kernel) -> tuple[str, ...]:
    """What `tfkit machine-code` finds, but for local memory, whose bytes ptxas counts."""
    return tuple(
        f"{found.address:#06x} {found.instruction}: {found.what}" for found in findings(kernel) if found.check != "local memory"
    )


def loops_of(kernel: Kernel) -> tuple[list[Loop], int]:
    """Innermost loops that multiply matrices or have the hardware copy, in their order in the program; and the number of the
    instructions outside of them."""
    blocks = kernel.blocks
    jumps = ((first, last) for last, block in enumerate(blocks) for first in block.after if first <= last)
    found: dict[int, Loop] = {}
    taken: list[tuple[int, int]] = []
    for first, last in sorted(jumps, key=lambda jump: jump[1] - jump[0]):
        if any(first <= inner_first and inner_last <= last for inner_first, inner_last in taken):
            continue
        names = _way(blocks, first, last)
        if any(WORK.match(name) for name in names):
            taken.append((first, last))
            kinds = Counter(kind for name in names for kind in KINDS if re.match(KINDS[kind], name))
            found[first] = Loop(len(names), kinds, len(_way(blocks, first, last, -1)))
    inside = {number for first, last in taken for number in range(first, last + 1)}
    outside = sum(len(_names(block)) for number, block in enumerate(blocks) if number not in inside)
    return [found[first] for first in sorted(found)], outside


def _names(block: Block) -> tuple[str, ...]:
    return tuple(each.name for each in block.instructions if each.name != "NOP")


def _way(blocks: Sequence[Block], first: int, last: int, sign: int = 1) -> tuple[str, ...]:
    """The instructions from the head of a loop to its branch backwards: most products, then fewest instructions, or most of
    them with `sign` -1; none where there is no way."""

    def weight(names: Sequence[str]) -> tuple[int, int]:
        return -sum(bool(PRODUCTS.match(name)) for name in names), sign * len(names)

    best = {first: _names(blocks[first])}
    for number in range(first, last):
        for after in blocks[number].after if number in best else ():
            if number < after <= last:
                way = (*best[number], *_names(blocks[after]))
                if after not in best or weight(way) < weight(best[after]):
                    best[after] = way
    return best.get(last, ())
