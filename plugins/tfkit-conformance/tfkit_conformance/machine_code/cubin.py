"""Files of machine code: where they are, whether they are cubins, and what `nvdisasm` makes of them.

Files come from anyone: no link is followed, and sizes, numbers of files and the time of the disassembler are bounded.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfkit import Diagnostic, InputError
from tfkit.commands import parse_json, read_bytes

MAX_BYTES = 64 << 20
"""Of a cubin. The largest of 3,614 that Triton made has 0.4 MiB."""
MAX_LISTING = 256 << 20
"""Bytes that a disassembler may write."""
MAX_MEMORY = 8 << 30
"""Bytes of memory that it may take."""
MAX_FILES = 100_000
MAX_DEPTH = 16
SECONDS = 120.0
"""Time of the disassembler for one file."""
CUDA_MACHINE = 190
NEED = "install Triton, whose wheel has it, or the CUDA toolkit, or the package nvidia-cuda-nvdisasm; or set NVDISASM"


def cubins_of(place: str) -> list[Path]:
    """The file, or the cubins in a directory and those below it. Raises InputError where there is none."""
    path = Path(place)
    if not path.is_dir():
        return [path]
    cubins = sorted(_below(path, 0))
    if not cubins:
        raise wrong(path, "no *.cubin in the directory", "name a file, or a cache of Triton such as ~/.triton/cache")
    if len(cubins) > MAX_FILES:
        raise wrong(path, f"more than {MAX_FILES:,} cubins in the directory", "name a directory with fewer")
    return cubins


def _below(directory: Path, depth: int) -> Iterator[Path]:
    try:
        entries = list(os.scandir(directory))
    except OSError as reason:
        raise wrong(directory, reason.strerror or "cannot be read", "choose a directory that can be read") from None
    for entry in entries:
        if entry.is_file(follow_symlinks=False) and entry.name.endswith(".cubin"):
            yield Path(entry.path)
        elif depth < MAX_DEPTH and entry.is_dir(follow_symlinks=False):
            yield from _below(Path(entry.path), depth + 1)


def wrong(path: Path, what: str, fix: str) -> InputError:
    return InputError(Diagnostic("TFK171", f"{path}: {what}", fix))


def read_cubin(path: Path) -> bytes:
    """The bytes of a cubin. Raises InputError for what is none, with what it is."""
    try:
        data = read_bytes(path, MAX_BYTES, links=False)
    except OSError as reason:
        raise wrong(path, reason.strerror or "cannot be read", "name a cubin") from None
    if (what := _other(data)) is not None:
        raise wrong(path, f"not a cubin: {what}", "name the ELF file that ptxas writes; Triton keeps it as NAME.cubin")
    return data


def _other(data: bytes) -> str | None:
    """What a file is that is no cubin; None for one that is."""
    if not data:
        return "it is empty"
    if data[:4] == b"\x7fELF":
        if len(data) < 64 or data[4:6] != b"\x02\x01":
            return "it is a truncated ELF file, or none of 64 bits"
        machine = struct.unpack_from("<H", data, 18)[0]
        if machine == CUDA_MACHINE:
            return None
        return (
            "it is machine code of AMD"
            if machine == 224
            else f"it is an ELF file of machine {machine}, not of CUDA ({CUDA_MACHINE})"
        )
    known = {
        b"\x50\xed\x55\xba": "it is a fat binary; take the cubins out with `cuobjdump -xelf all`",
        b"PK\x03\x04": "it is a zip archive",
        b"BC\xc0\xde": "it is LLVM bitcode",
        b"\x1f\x8b": "it is compressed (gzip)",
        b"version https://git-lfs": "it is a pointer of Git LFS",
    }
    for start, what in known.items():
        if data.startswith(start):
            return what
    text = data[:65536]
    if b".version" in text and b".target" in text:
        return "it is PTX; compile it with ptxas"
    return "it is text" if all(byte >= 32 or byte in b"\t\n\r" for byte in text[:1024]) else "no known file of kernels"


def find_nvdisasm() -> Path:
    """NVDISASM, then the search path, Triton's wheel, the package of NVIDIA, and a CUDA toolkit. Raises InputError."""
    named = os.environ.get("NVDISASM")
    places = [Path(named)] if named else []
    if not named:
        on_path = shutil.which("nvdisasm")
        places += [Path(on_path)] if on_path else []
        for package, below in (("triton", "backends/nvidia/bin"), ("nvidia", "cu13/bin"), ("nvidia", "cuda_nvcc/bin")):
            spec = importlib.util.find_spec(package)
            places += [Path(root) / below / "nvdisasm" for root in (spec.submodule_search_locations or ())] if spec else []
        places.append(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvdisasm")
    for place in places:
        if place.is_file() and os.access(place, os.X_OK):
            return place
    looked = ", ".join(map(str, places if named else [Path("PATH"), *places]))
    raise InputError(Diagnostic("TFK171", f"no nvdisasm was found; looked in {looked}", NEED))


def disassembled(data: bytes, path: Path, nvdisasm: Path, seconds: float = SECONDS) -> str:
    """The listing of a cubin, with source lines where it has them. Raises InputError with what nvdisasm says."""
    with tempfile.TemporaryDirectory() as directory:
        copy, listing = Path(directory) / "kernel.cubin", Path(directory) / "listing"
        copy.write_bytes(data)
        try:
            with listing.open("wb") as out:
                done = subprocess.run(
                    [str(nvdisasm), "-c", "-g", str(copy)],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.PIPE,
                    timeout=seconds,
                    preexec_fn=_limited,
                )
        except subprocess.TimeoutExpired:
            raise wrong(
                path, f"nvdisasm did not end within {seconds:g} seconds", "check this file alone, with a larger --timeout"
            ) from None
        except OSError as reason:
            raise InputError(Diagnostic("TFK171", f"{nvdisasm} cannot be run: {reason.strerror}", NEED)) from None
        message = done.stderr.decode("utf-8", "replace").replace(str(copy), path.name)
        if done.returncode:
            fault = next(
                (line for line in message.splitlines() if "warning" not in line and line.strip()),
                f"exit code {done.returncode}",
            )
            fix = "an architecture that this nvdisasm does not know needs a newer one; else the file is damaged"
            raise wrong(path, f"{nvdisasm.name} cannot read it: {' '.join(fault.split())[:300]}", fix)
        return listing.read_text(encoding="utf-8", errors="replace")


def _limited() -> None:
    """The disassembler reads a file of anyone."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_LISTING, MAX_LISTING))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def shared_of(path: Path) -> int | None:
    """Bytes of shared memory that Triton's description beside a cubin declares; None without one."""
    try:
        described: Any = parse_json(read_bytes(path.with_suffix(".json"), 1 << 20, links=False))
    except (OSError, ValueError):
        return None
    declared = described.get("shared") if isinstance(described, dict) else None
    return declared if type(declared) is int and declared >= 0 else None
