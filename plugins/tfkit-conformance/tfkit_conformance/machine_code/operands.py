"""What an instruction reads and writes, from its text: the rules of operands of sm_70 to sm_121.

Registers are bits of one integer: R, then UR, P, UP. Operands that are written stand first. How many registers an operand has
is said by the modifiers of the instruction (`.64`, `.WIDE`, shapes of products) and of the operand (`.64`, `.F32x2`). An
instruction that no rule names has the usual form: its first operand is written, the others are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FILES = {"R": (0, 255), "UR": (256, 128), "P": (384, 7), "UP": (392, 7)}
"""The first bit and the number of registers of each file."""
ALL = (1 << 400) - 1

PLAIN = re.compile(r"[-|~!]*(UR|R)(\d+|Z)\|?((?:\.\w+)*)\|?(?:\.reuse)?")
PREDICATE = re.compile(r"!?(U?P)(\d|T)")
_BRACKETS = re.compile(r"(\w*)\[([^]]*)\]")
_INSIDE = re.compile(r"(?<![\w.])(UR|R)(\d+)(\.64)?")
_SHAPE = re.compile(r"(16|8)x?(8)x?(\d+)")

WRITES_NOTHING = re.compile(
    r"(ST[GSL]?|STSM|STTM|STAS|RED[GS]?|SUST|SURED|LDGSTS|LDGDEPBAR|UTMA\w+|UBLK\w+|UTC(?!ATOMSWS)\w+|BAR|BSYNC|BSSY|BREAK|BMOV|R2B|"
    r"WARP\w+|CCTL\w*|UCCTL|MEMBAR|ERRBAR|DEPBAR|FENCE|NOP|NANOSLEEP|YIELD|PMTRIG|USETMAXREG|ACQBULK|U?CGABAR\w*|ARRIVES|PREEXIT|"
    r"ENDCOLLECTIVE|UVIRTCOUNT|UMEMSETS|USTGR|SETCTAID|SETLMEMBASE|BRA|BRXU?|JMP|JMXU?|CALL|RET|EXIT|KILL|BPT|RTT)"
)
"""Names, without modifiers, of instructions whose first operand is read like the others."""
WRITES_PREDICATES = re.compile(r"U?[IFDHPC]SETP2?|U?PLOP3|FCHK")
GROUP_PRODUCTS = ("HGMMA", "QGMMA", "IGMMA", "BGMMA")
PRODUCTS = ("HMMA", "IMMA", "QMMA", "OMMA", "BMMA", "DMMA")
SIZES = {
    "TF32": 32, "S8": 8, "U8": 8, "S4": 4, "U4": 4, "B1": 1, "E4M3": 8, "E5M2": 8, "E2M3": 8, "E3M2": 8, "E2M1": 8,
}  # fmt: skip
"""Bits of the factors of a product that are not 16."""
MEMORY = re.compile(r"(U?LD\w*|ST\w*|RED\w*|ATOM\w*|SU\w+)")


@dataclass(frozen=True)
class Effect:
    """The registers that an instruction reads and writes, as bits. One that copies passes on what it reads, written or not."""

    reads: int = 0
    writes: int = 0
    copies: bool = False


def registers(file: str, number: int, count: int = 1) -> int:
    first, size = FILES[file]
    return ((1 << max(0, min(count, size - number))) - 1) << (first + number)


def predicate(operand: str) -> int:
    """The bit of `P0` or `!UP1`; none for PT, which is constant, and for what is no predicate."""
    match = PREDICATE.fullmatch(operand)
    return registers(match[1], int(match[2])) if match and match[2] != "T" else 0


def names_of(mask: int) -> tuple[str, ...]:
    return tuple(
        f"{file}{number}" for file, (first, size) in FILES.items() for number in range(size) if mask >> (first + number) & 1
    )


def effect(name: str, operands: tuple[str, ...]) -> Effect:
    """The reads and writes of an instruction, without its guard."""
    base, *modifiers = name.split(".")
    if base in ("R2P", "UR2UP"):  # PR, register, mask
        return Effect(_read(base, modifiers, operands[1:]), _masked_predicates(operands))
    if base in ("P2R", "UP2UR"):  # register, PR, register, mask; bits that stay in place are not read
        kept = 0 if operands[2] == operands[0] else _plain(operands[2])
        return Effect(_masked_predicates(operands) | kept, _plain(operands[0]))
    targets = operands[: _targets(base, operands)]
    sources = operands[len(targets) :]
    writes = 0
    for operand in targets:
        writes |= predicate(operand) | _plain(operand, _written(base, modifiers))
    if base == "PRMT":
        return Effect(_permuted(*operands), writes)
    if base == "LOP3" and _sets_one_bit(operands):
        return Effect(0, writes)
    if base in GROUP_PRODUCTS:
        return Effect(_group_product(base, modifiers, sources), writes)
    return Effect(_read(base, modifiers, sources), writes, _copies(base, modifiers, sources))


def _targets(base: str, operands: tuple[str, ...]) -> int:
    """How many operands are written. Predicates that are written stand before or behind the register that is."""
    if WRITES_NOTHING.fullmatch(base):
        return 0
    if base in ("VOTE", "VOTEU", "ELECT"):
        return len(operands) - 1
    if WRITES_PREDICATES.fullmatch(base):
        return 1 if base == "FCHK" else 2
    count = 0
    while count < len(operands) and re.fullmatch(r"U?P[\dT]", operands[count]):
        count += 1
    if count < len(operands) and PLAIN.fullmatch(operands[count]):
        count += 1
        if count == 1:
            count += sum(1 for operand in operands[1:3] if re.fullmatch(r"U?P[\dT]", operand))
    return count


def _masked_predicates(operands: tuple[str, ...]) -> int:
    """The predicates of PR or UPR that a mask, the last operand, names."""
    file = "UP" if "UPR" in operands else "P"
    mask = int(operands[-1], 16) if re.fullmatch(r"0x[0-9a-f]+", operands[-1]) else 0x7F
    return sum(registers(file, number) for number in range(7) if mask >> number & 1)


def _plain(operand: str, width: int = 1) -> int:
    match = PLAIN.fullmatch(operand)
    return registers(match[1], int(match[2]), width) if match and match[2] != "Z" else 0


def _data(modifiers: list[str]) -> int:
    """Registers of the data that a load, a store or an atomic operation moves."""
    for modifier in modifiers:
        if modifier in ("64", "96", "128", "256"):
            return int(modifier) // 32
        if modifier in ("F64", "U64", "S64"):
            return 2
        if match := re.fullmatch(r"(F32|B?F16)x(\d+)", modifier):
            return max(1, int(match[2]) // (1 if match[1] == "F32" else 2))
    return 1


def _matrices(modifiers: list[str]) -> int:
    """Registers of LDSM and STSM."""
    return next((int(modifier) for modifier in modifiers if modifier in ("2", "4")), 1)


def _tensor_memory(modifiers: list[str]) -> int:
    """Registers of LDTM and STTM: `x16` of 32 or 64 bits in a lane, twice or four times as many of 128 or 256 bits."""
    count = next((int(modifier[1:]) for modifier in modifiers if re.fullmatch(r"x\d+", modifier)), 1)
    shape = next((modifier for modifier in modifiers if "dp" in modifier), "")
    return count * (4 if "256bit" in shape else 2 if "128bit" in shape else 1)


def _product(base: str, modifiers: list[str]) -> tuple[int, int, int]:
    """Registers of the sum, the first and the second factor of a product of matrices by one warp."""
    shape = next(filter(None, (_SHAPE.fullmatch(modifier) for modifier in modifiers)), None)
    if shape is None:
        return 4, 1, 1
    rows, columns, inner = map(int, shape.groups())
    size = (
        64
        if base == "DMMA"
        else next((SIZES[modifier] for modifier in modifiers if modifier in SIZES), 4 if base == "OMMA" else 16)
    )
    kept = 64 if base == "DMMA" else 16 if "F16" in modifiers and "F32" not in modifiers else 32
    first = rows * inner * size // 1024 // (2 if "SP" in modifiers else 1)
    return rows * columns * kept // 1024, max(1, first), max(1, columns * inner * size // 1024)


def _group_sum(modifiers: list[str]) -> int:
    """Registers of the sum of a product by a group of warps: 64 rows over 128 threads."""
    columns = next(int(modifier.split("x")[1]) for modifier in modifiers if re.fullmatch(r"\d+x\d+x\d+", modifier))
    return columns // (4 if "F16" in modifiers and "F32" not in modifiers else 2)


def _group_product(base: str, modifiers: list[str], sources: tuple[str, ...]) -> int:
    """The factors: both in shared memory, described by four uniform registers from that of `gdesc` on; or the first in four
    registers, and of the uniform ones the last two. A predicate says whether the sum is read; it may be unwritten then."""
    at = next(position for position, operand in enumerate(sources) if operand.startswith("gdesc"))
    match = _INSIDE.search(sources[at])
    read = 0
    if match:
        read = registers("UR", int(match[2]) + (2 if at else 0), 2 if at else 4)
    summed, *rest = sources[at + 1 :]
    flags = [operand for operand in rest if PREDICATE.fullmatch(operand)]
    read |= _plain(sources[0], 4) if at else 0
    read |= sum(map(predicate, flags))
    return read if flags and flags[0] != "UPT" else read | _plain(summed, _group_sum(modifiers))


def _wide_conversion(base: str, modifiers: list[str]) -> tuple[bool, bool]:
    """Whether the result and the argument of a conversion have 64 bits: `F2I.U64`, `I2F.F64.S64`, `F2F.F32.F64`."""
    wide = [modifier in ("F64", "U64", "S64") for modifier in modifiers if re.fullmatch(r"(F|U|S|B|BF)\d+", modifier)]
    if len(wide) > 1 or base == "F2F":
        return wide[0], wide[-1]
    if base == "FRND":
        return any(wide), any(wide)
    of_result = any(modifier in modifiers for modifier in (("F64",) if base == "I2F" else ("U64", "S64")))
    return of_result, any(wide) and not of_result


def _written(base: str, modifiers: list[str]) -> int:
    """Registers of the result."""
    if base in GROUP_PRODUCTS:
        return _group_sum(modifiers)
    if base in PRODUCTS:
        return _product(base, modifiers)[0]
    if base == "LDSM":
        return _matrices(modifiers)
    if base == "LDTM":
        return _tensor_memory(modifiers)
    if base == "CS2R":
        return 1 if "32" in modifiers else 2
    if base in ("F2I", "I2F", "F2F", "FRND"):
        return 2 if _wide_conversion(base, modifiers)[0] else 1
    if re.fullmatch(r"TEX|TLD4?|TXD|TMML|TXQ|SULD", base):
        return 4
    if MEMORY.fullmatch(base) or "64" in modifiers or "128" in modifiers:
        return _data(modifiers)
    return 2 if "WIDE" in modifiers or base in ("DADD", "DMUL", "DFMA", "DMNMX", "FADD2", "FMUL2", "FFMA2") else 1


def _width(base: str, modifiers: list[str], suffixes: list[str], position: int) -> int:
    """Registers of an operand that is read: its own modifiers, and its place among those that are."""
    if "64" in suffixes or "F32x2" in suffixes:
        return 2
    if base in PRODUCTS:
        return (*_product(base, modifiers)[1:], _product(base, modifiers)[0], 1)[min(position, 3)]
    if base == "STSM":
        return _matrices(modifiers)
    if base == "STTM":
        return _tensor_memory(modifiers)
    if base in ("LDSM", "LDTM", "LDGSTS", "FADD2", "FMUL2", "FFMA2"):
        return 1
    if "WIDE" in modifiers or ("HI" in modifiers and base in ("IMAD", "UIMAD")):
        return 2 if position == 2 else 1
    if base in ("F2I", "I2F", "F2F", "FRND"):
        return 2 if _wide_conversion(base, modifiers)[1] else 1
    if MEMORY.fullmatch(base) or "64" in modifiers:
        return _data(modifiers)
    return 2 if base in ("DADD", "DMUL", "DFMA", "DMNMX", "DSETP") else 1


def _read(base: str, modifiers: list[str], sources: tuple[str, ...]) -> int:
    if (
        base == "UTMALDG"
        and (tiled := [modifier for modifier in modifiers if re.fullmatch(r"[1-5]D", modifier)])
        and "IM2COL" not in modifiers
    ):
        # the address, the barrier and a place along each axis; the address of the descriptor
        first, second = (_INSIDE.search(operand) for operand in sources[:2])
        if first and second:
            return registers("UR", int(first[2]), 2 + int(tiled[0][0])) | registers("UR", int(second[2]), 2)
    read = 0
    for position, operand in enumerate(sources):
        if match := PLAIN.fullmatch(operand):
            read |= _plain(operand, _width(base, modifiers, match[3].split("."), position))
            continue
        read |= predicate(operand)
        for kind, inside in _BRACKETS.findall(operand):
            for file, number, wide in _INSIDE.findall(inside):
                described = file == "UR" and kind in ("desc", "gdesc", "c", "cx")
                read |= registers(file, int(number), 2 if wide or described else 1)
    return read


def _permuted(target: str, first: str, selector: str, second: str) -> int:
    """PRMT takes each byte of its result from one of two registers. Bytes that stay in place are not read: so compilers write
    one half of a register."""
    if not re.fullmatch(r"0x[0-9a-f]+", selector):
        return _plain(first) | _plain(selector) | _plain(second)
    read = 0
    for byte in range(4):
        chosen = int(selector, 16) >> 4 * byte & 7
        source = second if chosen >= 4 else first
        if not (source.removesuffix(".reuse") == target and chosen % 4 == byte):
            read |= _plain(source)
    return read


def _sets_one_bit(operands: tuple[str, ...]) -> bool:
    """Whether LOP3 clears or sets one bit of a register in place: so compilers keep flags in bits, of which the others may be
    unwritten."""
    target, first, *rest = operands
    if not (
        target == first.removesuffix(".reuse") and len(rest) >= 3 and re.fullmatch(r"0x[0-9a-f]+", rest[0]) and rest[1] == "RZ"
    ):
        return False
    ones = int(rest[0], 16).bit_count()
    return (rest[2] == "0xc0" and ones == 31) or (rest[2] == "0xfc" and ones == 1)


def _copies(base: str, modifiers: list[str], sources: tuple[str, ...]) -> bool:
    if base in ("MOV", "UMOV", "R2UR"):
        return len(sources) == 1
    return base == "IMAD" and modifiers in (["U32"], ["MOV", "U32"]) and sources[:2] == ("RZ", "RZ")
