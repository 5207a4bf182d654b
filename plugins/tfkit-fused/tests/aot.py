"""Kernels compiled ahead of time for a GPU that is not here: what they take of it, by Triton's compiler and ptxas.

A launch is recorded instead of run, so what is compiled is what the backend would launch, argument by argument.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.uint8: "u8", torch.int32: "i32",
    torch.int64: "i64",
}  # fmt: skip
OPTIONS = ("num_warps", "num_stages")


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments, as it was launched."""

    kernel: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]


@dataclass(frozen=True)
class Cost:
    """What one compiled kernel takes: shared memory and spilled registers in bytes, registers of a thread."""

    shared: int
    registers: int
    spilled: int


class Recorder:
    """Stands for a kernel where it is launched."""

    def __init__(self, kernel: Any, heard: list[Launch]) -> None:
        self.kernel, self.heard = kernel, heard

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments, **named: self.heard.append(Launch(self.kernel, arguments, named))


def compiled(launch: Launch, capability: int) -> Cost:
    """Compile for sm_`capability`. Raises what the compiler raises."""
    source, options = _source(launch)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": True, **options})
    return Cost(found.metadata.shared, *_ptxas(found.asm["ptx"], capability))


def intermediate(launch: Launch, capability: int) -> str:
    """The program in Triton's own intermediate language, optimised, without where it comes from."""
    source, options = _source(launch)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": True, **options})
    return re.sub(r"(?m) loc\(.*$|^#loc.*$", "", found.asm["ttir"])


def _source(launch: Launch) -> tuple[ASTSource, dict[str, Any]]:
    kernel, names = launch.kernel, launch.kernel.arg_names
    options = {name: launch.named[name] for name in OPTIONS if name in launch.named}
    values = dict(zip(names, launch.arguments, strict=False)) | {k: v for k, v in launch.named.items() if k not in OPTIONS}
    plain = {names[index] for index, parameter in enumerate(kernel.params) if parameter.do_not_specialize}
    constant = {names[index] for index, parameter in enumerate(kernel.params) if parameter.is_constexpr}
    signature, constants, attributes = {}, {}, {}
    for index, name in enumerate(names):
        signature[name] = _typed(values[name], (index,), name in plain, name in constant, constants, attributes)
    return ASTSource(kernel, signature, constants, attributes), options


def _typed(value: Any, path: tuple[int, ...], plain: bool, constant: bool, constants: Any, attributes: Any) -> Any:
    if isinstance(value, tuple):
        parts = [_typed(each, (*path, place), plain, constant, constants, attributes) for place, each in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, tl.constexpr):
        constants[path] = value.value
        return "constexpr"
    if constant or value is None or (isinstance(value, int) and value == 1 and not plain):
        constants[path] = value
        return "constexpr"
    if isinstance(value, Tensor):
        attributes[path] = [["tt.divisibility", 16]]
        return f"*{TYPES[value.dtype]}"
    if isinstance(value, float):
        return "fp32"
    if not isinstance(value, int):
        raise TypeError(f"Triton takes no {type(value).__name__} as an argument that is no constant")
    if value % 16 == 0 and not plain:
        attributes[path] = [["tt.divisibility", 16]]
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _ptxas(ptx: str, capability: int) -> tuple[int, int]:
    """(registers, bytes spilled)."""
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "kernel.ptx"
        source.write_text(ptx)
        name = re.search(r"\.target (sm_\w+)", ptx).group(1)
        said = subprocess.run(
            [get_ptxas(capability).path, "-v", f"--gpu-name={name}", str(source), "-o", str(Path(place) / "kernel.cubin")],
            capture_output=True, text=True,
        )  # fmt: skip
    if said.returncode:
        raise RuntimeError(said.stderr or said.stdout)
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", said.stderr)))
    return int(re.search(r"Used (\d+) registers", said.stderr).group(1)), spilled
