"""What ptxas made of a kernel: the instructions of its loops, and an estimate of the time that they take.

A loop is what a branch backwards encloses. It is counted along one way through its body: of all ways with the most products of
matrices, the one with the fewest instructions, which is that of a tile with no mask and one bias.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
    """Instructions of one warp for one step of a loop, in all and by kind."""

    instructions: int
    kinds: dict[str, int]

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


def loops_of(kernel: Kernel) -> list[Loop]:
    """Innermost loops that multiply matrices or have the hardware copy, in their order in the program."""
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
            found[first] = Loop(len(names), Counter(kind for name in names for kind in KINDS if re.match(KINDS[kind], name)))
    return [found[first] for first in sorted(found)]


def _names(block: Block) -> tuple[str, ...]:
    return tuple(each.name for each in block.instructions if each.name != "NOP")


def _weight(names: Sequence[str]) -> tuple[int, int]:
    """Orders ways through a loop: more products first, then fewer instructions."""
    return -sum(bool(PRODUCTS.match(name)) for name in names), len(names)


def _way(blocks: Sequence[Block], first: int, last: int) -> tuple[str, ...]:
    """The instructions from the head of a loop to its branch backwards; none where there is no way."""
    best = {first: _names(blocks[first])}
    for number in range(first, last):
        for after in blocks[number].after if number in best else ():
            if number < after <= last:
                way = (*best[number], *_names(blocks[after]))
                if after not in best or _weight(way) < _weight(best[after]):
                    best[after] = way
    return best.get(last, ())


CLOCK, PROCESSORS = 1.83e9, 132
"""Of an H100 (SXM): cycles a second, streaming multiprocessors."""
TENSOR_FLOPS = 4096
"""Of one multiprocessor in one cycle, in 16 bits."""
EXPOSED = 434
"""Cycles of a step in which neither tensor cores nor arithmetic make progress: what remains of the 403 TFLOP/s that Triton's
tutorial kernel is published with for head dim 64, where this model then gives 465 for head dim 128 (published: 395 to 487)."""


def estimated_tflops(loop: Loop, warps: int, queries: int, keys: int, features: int) -> float:
    """TFLOP/s of a forward pass on an H100 if every step took the cycles of its products, its other instructions and EXPOSED.

    Four schedulers issue one instruction a cycle each, and exponentials take eight cycles of one.
    """
    flops = 4.0 * queries * keys * features
    issued = max(loop.instructions, 8 * loop["exp2"]) * warps / 4
    cycles = flops / TENSOR_FLOPS + issued + EXPOSED
    return flops / cycles * CLOCK * PROCESSORS / 1e12
