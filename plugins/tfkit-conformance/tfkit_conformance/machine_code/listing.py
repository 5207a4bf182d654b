"""The listing that `nvdisasm -c -g` prints of a cubin: kernels, their instructions, and the basic blocks of these."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .operands import PREDICATE

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^\s,\"]+)")
_ENTRY = re.compile(r'^\s*\.other\s+([^\s,]+),@"STO_CUDA_ENTRY')
_LABEL = re.compile(r"^([.$\w]+):")
_SOURCE = re.compile(r'^\s*//## File "(.*?)", line (\d+)')
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z]\w*(?:\.\w+)*)\.?\s*(.*?)\s*;")
_TARGET = re.compile(r"`\(([^)]*)\)")
_TARGETS = re.compile(r"BRANCH_TARGETS ([^\"*)]*)")


@dataclass(frozen=True)
class Instruction:
    """One line: where it is in the code and in the source, its guard (`P0`, `!UP1` or none), its name and its operands."""

    address: int
    guard: str
    name: str
    operands: tuple[str, ...]
    source: str | None = None
    targets: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"{'@' * bool(self.guard)}{self.guard} {self.name} {', '.join(self.operands)}".strip()


@dataclass(frozen=True)
class Block:
    """Instructions of which only the first is jumped to and only the last jumps; the blocks that may come next; and the block
    of a function that the last instruction calls, or that it calls one elsewhere."""

    instructions: tuple[Instruction, ...]
    after: tuple[int, ...] = ()
    calls: int | None = None
    calls_elsewhere: bool = False


@dataclass(frozen=True)
class Kernel:
    """A kernel: its blocks, of which it begins with the first."""

    name: str
    blocks: tuple[Block, ...]

    def instructions(self) -> Iterator[Instruction]:
        for block in self.blocks:
            yield from block.instructions


def kernels_of(listing: str) -> list[Kernel]:
    """The kernels of a listing. Functions that another section calls are left out: what their callers wrote is not known."""
    sections: dict[str, list[list[Instruction]]] = {}
    labels: dict[str, dict[str, int]] = {}
    entries, name, source = set(), "", None
    for line in listing.splitlines():
        if match := _INSTRUCTION.match(line):
            if not name:
                continue
            address, guard, opcode, operands = match.groups(default="")
            here = sections[name]
            targets = tuple(_TARGET.findall(operands))
            if targeted := _TARGETS.search(line):
                targets = tuple(targeted[1].replace(",", " ").split())
            here[-1].append(Instruction(int(address, 16), guard, opcode, _split(operands), source, targets))
            if _ends(here[-1][-1]):
                here.append([])
        elif match := _SECTION.match(line):
            name, source = match[1], None
            sections.setdefault(name, [[]])
            labels.setdefault(name, {})
        elif line.startswith("//-----"):
            name = ""
        elif match := _SOURCE.match(line):
            source = f"{match[1]}:{match[2]}"
        elif match := _ENTRY.match(line):
            entries.add(match[1])
        elif (match := _LABEL.match(line)) and name:
            if sections[name][-1]:
                sections[name].append([])
            labels[name][match[1]] = len(sections[name]) - 1
    return [
        Kernel(section, tuple(_joined(runs, labels[section])))
        for section, runs in sections.items()
        if section in entries and any(runs)
    ]


def _split(operands: str) -> tuple[str, ...]:
    return tuple(filter(None, (operand.strip() for operand in operands.split(","))))


JUMPS = ("BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "EXIT", "RET", "CALL", "KILL", "BPT")


def _ends(instruction: Instruction) -> bool:
    return instruction.name.split(".")[0] in JUMPS


def _joined(runs: list[list[Instruction]], labels: dict[str, int]) -> Iterator[Block]:
    """The blocks of a section. A branch may have its condition before its name or as its first operand. BSYNC goes on behind
    itself, where its BSSY says."""
    for number, run in enumerate(runs):
        here, follows = tuple(run), (number + 1,) if number + 1 < len(runs) else ()
        if not run or not _ends(run[-1]):
            yield Block(here, follows)
            continue
        last = run[-1]
        kind = last.name.split(".")[0]
        targets = tuple(labels[target] for target in last.targets if target in labels)
        conditional = bool(last.guard) or any(map(PREDICATE.fullmatch, last.operands[:1]))
        if kind == "CALL":
            yield Block(here, follows, targets[0] if targets else None, not targets)
        elif kind in ("EXIT", "RET", "KILL"):
            yield Block(here, follows if last.guard else ())
        else:
            yield Block(here, targets + (follows if conditional or kind == "BPT" else ()))
