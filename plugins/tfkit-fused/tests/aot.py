"""Kernels compiled ahead of time for a GPU that is not present: the resources that they use, by Triton's compiler and ptxas.

A launch is recorded instead of run and then handed to Triton's own front end, with a driver that only says what the GPU would
be: what is compiled is what the backend would launch, specialised as Triton would.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from machine_code import Loop, kernel_of, loops_of, wrong_of
from tfkit_fused import launch, tiles
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import CompiledKernel


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments, as it was launched."""

    kernel: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    key: Any = None


@dataclass(frozen=True)
class Cost:
    """What one compiled kernel takes: shared memory and spilled registers in bytes, registers of a thread; what ptxas advises
    against (C7510 to C7519: products that wait for each other); the loops that multiply matrices; what is wrong in the machine
    code (`tfkit machine-code`): reads before writes, serialised products, shared memory that there is not; the instructions
    outside of the loops, 0 where an older record does not say."""

    shared: int
    registers: int
    spilled: int
    advisories: tuple[str, ...]
    loops: tuple[Loop, ...]
    wrong: tuple[str, ...] = ()
    outside: int = field(default=0, compare=False)

    @property
    def step(self) -> Loop:
        """The one loop that multiplies. Of specialised warps, one group's, with the copies that another group makes for it."""
        *_, longest = sorted(self.loops, key=lambda loop: (loop["wgmma"] + loop["mma"], loop.instructions))
        copies = [loop for loop in self.loops if not loop["wgmma"] + loop["mma"]]
        if len(self.loops) == 3 and len(copies) == 1:
            return replace(longest, kinds={**longest.kinds, "tma": copies[0]["tma"]})
        assert len(self.loops) == 1, self.loops
        return longest

    def written(self) -> dict[str, Any]:
        """For JSON."""
        described = {name: each for name, each in asdict(self).items() if name not in ("wrong", "outside") or each}
        loops = [
            {"instructions": loop.instructions, **({"most": loop.most} if loop.most else {}), **loop.kinds}
            for loop in self.loops
        ]
        return {**described, "loops": loops}

    @classmethod
    def read(cls, written: dict[str, Any]) -> Cost:
        loops = tuple(Loop(kinds.pop("instructions"), kinds, kinds.pop("most", 0)) for kinds in map(dict, written["loops"]))
        several = {name: tuple(written.get(name, ())) for name in ("advisories", "wrong")}
        return cls(**{**written, **several, "loops": loops})


class Recorder:
    """Stands for a kernel where it is launched."""

    def __init__(self, repeated: Any, heard: list[Launch]) -> None:
        self.kernel, self.heard = repeated.kernel, heard

    def __call__(self, key: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        self.heard.append(Launch(self.kernel, arguments, constants, key))


class Absent:
    """The driver of a GPU that is not present."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, name: str) -> str:
        return name


@contextmanager
def driven(kernel: Any, capability: int) -> Iterator[None]:
    """Meanwhile Triton compiles `kernel` for such a GPU."""
    kernel.device_caches.clear()
    triton.runtime.driver.set_active(Absent(capability))
    try:
        yield
    finally:
        if torch.cuda.is_available():  # without one there is no driver to go back to
            triton.runtime.driver.reset_active()
        kernel.device_caches.clear()


class Unmeasured:
    """A tuner that has measured nothing."""

    def chosen(self, call_class: str, choices: tuple[tiles.Tiles, ...], *_: Any) -> tiles.Tiles:
        return choices[0]


@contextmanager
def without_a_device(capability: int) -> Iterator[None]:
    """Meanwhile calls on CPU tensors compile kernels for such a GPU, and launch nothing: results are whatever is in memory."""
    generation = tiles.generation_of(capability // 10)

    def tiles_for(
        kernel: str, query: Any, key: Any, value: Any, features: str, ragged: bool, described: bool, *_: Any
    ) -> tuple[tiles.Tiles, ...]:
        return tiles.of_row(tiles.row_for(kernel, query, key, value, features, ragged), generation, described)

    with ExitStack() as stack:
        for owner, name, stand_in in (
            (CompiledKernel, "_init_handles", lambda self: None), (launch, "tiles_for", tiles_for),
            (CompiledKernel, "run", property(lambda self: lambda *_: None)), (launch, "tuner_of", lambda device: Unmeasured()),
            (launch, "_masks_all", lambda device: capability < 90), (launch, "_has_tma", lambda device: capability >= 90),
            (launch, "_is_hopper", lambda device: generation == tiles.HOPPER),
        ):  # fmt: skip
            stack.enter_context(patch.object(owner, name, stand_in))
        triton.runtime.driver.set_active(Absent(capability))
        yield


RECORD = Path(__file__).parents[3] / "bench" / "results" / "fused_sass.json"


def record_of(path: Path = RECORD) -> dict[str, Any]:
    """What a file says of the installed version of Triton."""
    return json.loads(path.read_text())["versions"].get(tiles.triton_version(), {}) if path.exists() else {}


def recorded_costs(path: Path = RECORD) -> dict[str, Cost]:
    """What the installed Triton made of programs, by their names; none if the file is of another release of Triton."""
    found = record_of(path)
    known = found["programs"] if found.get("triton") == triton.__version__ else {}
    return {name: Cost.read(written) for name, written in known.items()}


def program_of(recorded: Launch, capability: int) -> str:
    """The name of what is compiled: Triton's intermediate language, the options and the architecture, hashed. The rest of the
    compiler is a function of these, so that a program with a name that is known need not be compiled again."""
    options = sorted((name, value) for name, value in recorded.named.items() if name not in recorded.kernel.arg_names)
    return hashlib.sha256(f"{capability} {options} {intermediate(recorded, capability)}".encode()).hexdigest()[:16]


def cost_of(recorded: Launch, capability: int, known: Mapping[str, Cost]) -> Cost:
    """As recorded; else by compiling."""
    return known.get(program_of(recorded, capability)) or compiled(recorded, capability)


def compiled(recorded: Launch, capability: int) -> Cost:
    """Recompile for sm_`capability` with the options that Triton gives ptxas. Raises what Triton raises."""
    heard = io.StringIO()
    with knobs.compilation.scope(), knobs.nvidia.scope(), redirect_stdout(heard):
        knobs.compilation.always_compile = knobs.nvidia.dump_ptxas_log = True
        found = _found(recorded, capability)
    said = heard.getvalue()
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", said)))
    advisories = tuple(sorted(set(re.findall(r"\(C75\d\d\).*", said))))
    registers = int(re.search(r"Used (\d+) registers", said).group(1))
    kernel = kernel_of(found.asm["cubin"])
    loops, outside = loops_of(kernel)
    return Cost(found.metadata.shared, registers, spilled, advisories, tuple(loops), wrong_of(kernel), outside)


class _Program(Exception):
    """Ends a compilation; its argument is the program so far."""


def intermediate(recorded: Launch, capability: int) -> str:
    """The program in Triton's own intermediate language, optimised, without source locations and without the names that the
    source gives to values, because they change no code. Compilation stops there."""

    def only_the_first(backend: CUDABackend, stages: dict[str, Any], *arguments: Any) -> None:
        add_stages(backend, stages, *arguments)
        first = stages["ttir"]

        def stop(*arguments: Any) -> None:
            raise _Program(str(first(*arguments)))

        stages["ttir"] = stop

    add_stages = CUDABackend.add_stages
    with knobs.compilation.scope(), patch.object(CUDABackend, "add_stages", only_the_first):
        knobs.compilation.always_compile = True
        try:
            _found(recorded, capability)
        except _Program as program:
            return numbered(re.sub(r"(?m) loc\((?:[^()]|\([^()]*\))*\)|^#loc.*$", "", program.args[0]))
    raise AssertionError("Triton compiled no program")


def numbered(program: str) -> str:
    """Numbers in the place of the names of values, counted where a value is defined: `%x = ...`, `%x:2 = ...` or `%x: type`."""
    numbers: dict[str, int] = {}
    count = itertools.count()

    def number(value: re.Match[str]) -> str:
        name, defines = value["name"], value["defines"]
        if defines or name not in numbers:
            numbers[name] = next(count)
        return f"%{numbers[name]}"

    return re.sub(r"%(?P<name>[\w$.-]+)(?=(?P<defines>(?::\d+)? = |: )?)", number, program)


def _found(recorded: Launch, capability: int) -> Any:
    with driven(recorded.kernel, capability):
        return recorded.kernel.warmup(*recorded.arguments, grid=(1,), **{"enable_fp_fusion": True, **recorded.named})
