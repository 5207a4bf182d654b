"""What ptxas made of a kernel: the instructions of its loops, and an estimate of the time that they take.

A loop is what a branch backwards encloses. It is counted along one way through its body: of all ways with the most products of
matrices, the one with the fewest instructions, which is that of a tile with no mask and one bias.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import triton

NVDISASM = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"

INSTRUCTION = re.compile(r"^\s+(?:/\*[0-9a-f]+\*/\s+)?(?:@(\S+)\s+)?([A-Z][A-Z0-9_.]*)(.*?);")
LABEL = re.compile(r"^(\.L_x_\d+):")
TARGET = re.compile(r"`\((\.L_x_\d+)\)")
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
class Block:
    """Instructions of which only the first can be jumped to and only the last jumps, and the blocks that may come next."""

    names: tuple[str, ...]
    after: tuple[int, ...]

    @property
    def weight(self) -> tuple[int, int]:
        """Orders ways through a loop: more products first, then fewer instructions."""
        return -sum(bool(PRODUCTS.match(name)) for name in self.names), len(self.names)


@dataclass(frozen=True)
class Loop:
    """Instructions of one warp for one step of a loop, in all and by kind."""

    instructions: int
    kinds: dict[str, int]

    def __getitem__(self, kind: str) -> int:
        return self.kinds.get(kind, 0)


def loops_of(cubin: bytes) -> list[Loop]:
    """Innermost loops that multiply matrices or have the hardware copy, in their order in the program."""
    blocks = _blocks(_disassembled(cubin))
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


def _disassembled(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([NVDISASM, "-c", file.name], capture_output=True, text=True, check=True).stdout


def _blocks(text: str) -> list[Block]:
    runs: list[list[tuple[str, str, str]]] = [[]]
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := LABEL.match(line):
            if runs[-1]:
                runs.append([])
            labels[label.group(1)] = len(runs) - 1
        elif found := INSTRUCTION.match(line):
            predicate, name, operands = found.groups(default="")
            if name != "NOP":
                runs[-1].append((predicate, name, operands))
            if name.startswith(("BRA", "EXIT", "RET")):
                runs.append([])
    return [Block(tuple(name for _, name, _ in run), _after(number, run, labels, len(runs))) for number, run in enumerate(runs)]


def _after(number: int, run: list[tuple[str, str, str]], labels: dict[str, int], blocks: int) -> tuple[int, ...]:
    """A branch may have its condition before its name or as its first operand."""
    after = [number + 1] if number + 1 < blocks else []
    if not run:
        return tuple(after)
    predicate, name, operands = run[-1]
    if name.startswith("BRA") and (target := TARGET.search(operands)):
        jump = labels[target.group(1)]
        return (jump,) if not predicate and operands.lstrip().startswith("`") else (*after, jump)
    return () if name.startswith(("EXIT", "RET")) and not predicate else tuple(after)


def _way(blocks: list[Block], first: int, last: int) -> tuple[str, ...]:
    """The instructions from the head of a loop to its branch backwards; none where there is no way."""
    best = {first: (blocks[first].weight, blocks[first].names)}
    for number in range(first, last):
        for after in blocks[number].after if number in best else ():
            if number < after <= last:
                (products, length), names = best[number]
                more = blocks[after].weight
                way = ((products + more[0], length + more[1]), (*names, *blocks[after].names))
                if after not in best or way[0] < best[after][0]:
                    best[after] = way
    return best[last][1] if last in best else ()


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
