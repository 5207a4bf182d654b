"""Reads before writes: registers and predicates that a kernel reads on a path on which nothing wrote them.

A forward analysis of the control flow graph. The state at a place is the set of registers that are written on every path to it.
What it assumes, so that right code has no findings:

- A write under a predicate counts for all threads: compilers leave registers unwritten in threads that do not use them.
- A copy of a register is no use of it: the copy is written if the register is.
- A function that a kernel calls writes all that it may write; one in another section writes everything.
- A kernel begins with no register written. Other functions are analysed where a kernel of their section calls them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .listing import Block, Instruction, Kernel
from .operands import ALL, Effect, effect, names_of, predicate

Run = list[tuple[Instruction, Effect]]


@dataclass(frozen=True)
class ReadBeforeWrite:
    instruction: Instruction
    registers: tuple[str, ...]


def reads_before_writes(kernel: Kernel) -> list[ReadBeforeWrite]:
    """In the order of the code. What is read unwritten then counts as written in its block, so that it is named once there."""
    runs: list[Run] = [
        [
            (instruction, effect(instruction.name, instruction.operands))
            for instruction in block.instructions
            if instruction.guard not in ("!PT", "!UPT")
        ]
        for block in kernel.blocks
    ]
    before = {0: 0}
    waiting = [0]
    while waiting:
        number = waiting.pop()
        written = before[number]
        for instruction, done in runs[number]:
            written = _after(written, instruction, done)
        for after, coming in _successors(kernel.blocks, runs, number, written):
            met = coming & before.get(after, ALL)
            if before.get(after) != met:
                before[after] = met
                waiting.append(after)
    reads = (read for number, written in before.items() for read in _found(runs[number], written))
    return sorted(reads, key=lambda read: read.instruction.address)


def _after(written: int, instruction: Instruction, done: Effect) -> int:
    if done.copies and done.reads & ~written:
        return written if instruction.guard else written & ~done.writes
    return written | done.writes


def _successors(blocks: tuple[Block, ...], runs: list[Run], number: int, written: int) -> Iterator[tuple[int, int]]:
    block = blocks[number]
    if block.calls is not None:
        yield block.calls, written
        written |= _written_by(blocks, runs, block.calls)
    for after in block.after:
        yield after, ALL if block.calls_elsewhere else written


def _written_by(blocks: tuple[Block, ...], runs: list[Run], first: int) -> int:
    seen, waiting, written = {first}, [first], 0
    while waiting:
        number = waiting.pop()
        for _, done in runs[number]:
            written |= done.writes
        for after in (*blocks[number].after, blocks[number].calls):
            if after is not None and after not in seen:
                seen.add(after)
                waiting.append(after)
    return written


def _found(run: Run, written: int) -> Iterator[ReadBeforeWrite]:
    for instruction, done in run:
        needed = predicate(instruction.guard) | (0 if done.copies else done.reads)
        if missing := needed & ~written:
            yield ReadBeforeWrite(instruction, names_of(missing))
            written |= missing
        written = _after(written, instruction, done)
