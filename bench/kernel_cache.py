"""Triton's cache of the kernels of tfkit-fused, filled on a CPU for a GPU that is not there, carried as files, and checked.

    python bench/kernel_cache.py fill OUT/triton --capability 9.0 --workers 14       # anywhere, without a GPU
    python bench/kernel_cache.py check OUT/triton                                    # where the GPU is

`fill` runs what the stages of bench/on_cuda.sh run, on the CPU, with a driver that only says what the GPU would be. Triton
compiles, stores, and launches nothing. `check` corrects the absolute paths that Triton stores, compares the parts of Triton's
keys with those of this machine, makes a few calls, and counts the kernels that Triton found in the cache.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import compiled_ahead
import tfkit_fused
import torch
import triton
from tfkit_fused import launch
from tfkit_fused.attend import attend, attend_atomic
from tfkit_fused.kernels import backward, bias, decode, forward, specialised
from tfkit_fused.repeated import Repeated

from tfkit.catalogue import load_catalogue
from tfkit.files import parse_json, read_text, write_whole
from tfkit.inspection import attend as dispatch, bind
from tfkit.plugin import AttentionBackend, AttentionRequest, Device
from tfkit_conformance.bench.call import call_of
from tfkit_conformance.bench.cells import CELLS, SCALES, Cell, chosen

ROOT = Path(__file__).parents[1]
MANIFEST = "filled.json"
SMALL = {"TRITON_STORE_BINARY_ONLY": "1", "TRITON_DISABLE_LINE_INFO": "1"}
"""Files of 90 KB a kernel instead of 650 KB, 7 KB packed. The second is part of Triton's keys: bench/on_cuda.sh sets it too."""
KERNELS = (
    forward.forward, specialised.specialised, backward.row_sums, backward.queries, backward.keys_and_values,
    decode.decode_chunks, decode.join_chunks, bias.dense, bias.diagonals,
)  # fmt: skip
PROBES = ("dense-d64-512/*", "multi30k-decoder/training", "t5-512/training", "alibi-512/forward", "decode-1024")
"""Cells of the benchmark whose kernels `fill` always compiles and `check` asks for."""
OURS = ("fused", "fused.atomic")
STAGES = ("conformance", "models", "speed")


@contextmanager
def as_on(capability: tuple[int, int]) -> Iterator[None]:
    """Meanwhile the backends of tfkit-fused accept calls on the CPU as they would on such a GPU, compile for it, and launch
    nothing: results are whatever is in memory."""
    sys.path.insert(0, str(ROOT / "plugins" / "tfkit-fused" / "tests"))
    import aot

    with ExitStack() as stack:
        stack.enter_context(aot.without_a_device(10 * capability[0] + capability[1]))
        for name in ("FUSED", "ATOMIC"):
            stack.enter_context(patch.object(tfkit_fused, name, _on_cpu(getattr(tfkit_fused, name), capability)))
        _forget()
        stack.callback(_forget)
        yield


def _forget() -> None:
    """What this process knows of compiled kernels, so that Triton asks its files."""
    for each in vars(launch).values():
        if isinstance(each, Repeated):
            each.compiled.clear()
            each.kernel.device_caches.clear()


def _on_cpu(entry: AttentionBackend, capability: tuple[int, int]) -> AttentionBackend:
    """The entry, declared for a CPU too, with what it refuses on the GPU."""
    devices = (*entry.capabilities.devices, Device(kind="cpu"))
    unsupported, can = entry.unsupported, entry.capabilities.model_copy(update={"devices": devices})
    assert unsupported is not None

    def refused(request: AttentionRequest, options: Any) -> tuple[str, ...]:
        return unsupported(replace(request, device="cuda", cuda_capability=capability), options)

    return replace(entry, capabilities=can, unsupported=refused)


def key_parts(target: int) -> dict[str, str]:
    """What Triton's cache keys are made of beside a call, for `target` such as 90: where one differs, no kernel is found."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.backends.compiler import GPUTarget
    from triton.compiler import compiler
    from triton.runtime import cache

    triton_key = getattr(cache, "triton_key", None) or compiler.triton_key  # its place depends on the version

    sources = "".join(kernel.cache_key for kernel in KERNELS)
    return {
        "Triton": triton.__version__, "Triton's files": _short(triton_key()),
        "ptxas": _short(compiler.make_backend(GPUTarget("cuda", target, 32)).hash()), "kernels": _short(sources),
        "environment": str(sorted(get_cache_invalidating_env_vars().items())), "machine": platform.machine(),
    }  # fmt: skip


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def adopt(folder: Path) -> int:
    """Corrects the absolute paths in Triton's lists of files, after the folder was moved. Returns the number of kernels."""
    groups = sorted(folder.glob("*/__grp__*.json"))
    for group in groups:
        listed = parse_json(read_text(group, links=False))["child_paths"]
        if not isinstance(listed, dict):
            continue  # of a Triton that stores names alone
        here = {name: str(group.parent.resolve() / Path(name).name) for name in listed}
        if here != listed:
            write_whole(group, json.dumps({"child_paths": here}, allow_nan=False))
    return len(groups)


def files(folder: Path) -> Iterator[Path]:
    """The files that Triton's lists name."""
    for group in sorted(folder.glob("*/__grp__*.json")):
        for name in parse_json(read_text(group, links=False))["child_paths"]:
            yield group.parent / Path(name).name


def make_calls(cells: Sequence[Cell], device: str, rank: int = 0, workers: int = 1) -> int:
    """Calls `fused` and `fused.atomic` as `tfkit bench attention` does, each `workers`-th call from `rank` on."""
    catalogue, made = load_catalogue(), 0
    for number, cell in enumerate(cells):
        if number % workers != rank:
            continue
        call = call_of(cell, SCALES["cuda"], torch.bfloat16, device, 0)
        for name in OURS:
            entry = catalogue.find("backend", name)
            backend = bind(entry, entry.options())
            for inputs in (call.inputs, replace(call.inputs, dropout=0.0))[: 1 + (cell.dropout > 0.0)]:
                with torch.set_grad_enabled(cell.training):
                    output = dispatch(backend, inputs).output
                    if cell.training:
                        torch.autograd.grad(output, [leaf for leaf in call.leaves if leaf.requires_grad], call.grad_output)
                made += 1
    return made


def fill_speed(rank: int, workers: int) -> int:
    return make_calls(CELLS, "cpu", rank, workers)


def fill_models(rank: int, workers: int) -> int:
    """Runs the tests of tests/product/test_gpu.py, which draw the same models in every run, on the CPU."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "plugins" / "tfkit-conformance" / "tests")]
    import fixtures  # noqa: F401  the settings of Hypothesis: each run draws the same models
    from product import test_gpu  # its catalogue has the entries of `as_on`

    made: list[int] = []
    backends = {name: each for name, each in test_gpu.CATALOGUE.registered["backend"].items() if name in ("eager", *OURS)}
    ours = replace(test_gpu.CATALOGUE, registered={**test_gpu.CATALOGUE.registered, "backend": backends})
    with ExitStack() as stack:
        for name, function in (("attend", attend), ("attend_atomic", attend_atomic)):
            shared = compiled_ahead.beside_eager(function, rank, workers, made)
            stack.enter_context(patch.object(sys.modules["tfkit_fused.attend"], name, shared))
        stack.enter_context(patch.object(test_gpu, "on", lambda device, trial: replace(trial, catalogue=ours)))
        tests = [test_gpu.test_drawn_models_on_both_devices]
        sites = test_gpu.test_sites_of_drawn_models_on_the_device
        tests += [partial(sites, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
        tests += [
            partial(test_gpu.one_of_the_pairs, number, row)
            for number, row in enumerate(test_gpu.every_pair()) if row["backend"] in OURS
        ]  # fmt: skip
        for test in tests:
            try:
                test()
            except Exception as reason:  # the test will say so on the device
                print(" ".join(str(reason).split())[:200])
    return len(made)


def fill_conformance(rank: int, workers: int) -> int:
    found = compiled_ahead.work("fused", "cpu", ["bfloat16"], rank, workers)
    for message in found["raised"]:
        print(message)
    return int(found["calls"])


FILLS: dict[str, Callable[[int, int], int]] = {
    "conformance": fill_conformance, "models": fill_models, "speed": fill_speed,
}  # fmt: skip


def fill(folder: Path, capability: tuple[int, int], stages: Sequence[str], workers: int) -> int:
    """Fills the folder by so many processes for each stage. Returns the number that failed."""
    started_at, failed = time.perf_counter(), 0
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **SMALL, "TRITON_CACHE_DIR": str(folder.resolve()), "OMP_NUM_THREADS": "1"}
    given = [sys.executable, __file__, "fill", str(folder), "--capability", "{}.{}".format(*capability)]
    for stage in ("probes", *stages):
        number = 1 if stage == "probes" else workers
        words = [*given, "--stages", stage, "--workers", str(number), "--rank"]
        started = [subprocess.Popen([*words, str(rank)], env=environment) for rank in range(number)]
        failed += sum(process.wait() != 0 for process in started)
    target = 10 * capability[0] + capability[1]
    describe(folder, capability)
    seconds = time.perf_counter() - started_at
    print(f"{adopt(folder)} kernels for sm_{target} in {folder}, {seconds:.0f} s, {failed} processes failed")
    return failed


def describe(folder: Path, capability: tuple[int, int]) -> None:
    """Writes what the folder was filled for, and the parts of Triton's keys."""
    with patch.dict(os.environ, SMALL):
        manifest = {"capability": capability, "parts": key_parts(10 * capability[0] + capability[1])}
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1, allow_nan=False) + "\n")


def fill_share(stage: str, capability: tuple[int, int], rank: int, workers: int) -> None:
    """One process's share of a stage."""
    torch.set_num_threads(1)
    with as_on(capability), compiled_ahead.counted() as kernels:
        calls = make_calls(chosen(PROBES), "cpu") if stage == "probes" else FILLS[stage](rank, workers)
    print(f"{stage}, process {rank + 1} of {workers}: {calls} calls, {kernels}", flush=True)


def check(folder: Path, pretended: bool) -> int:
    """Whether Triton finds the kernels here; 0 where it does. `pretended`: without a device, as the kernels were made."""
    try:
        filled = parse_json(read_text(folder / MANIFEST, links=False))
        capability, parts = (int(filled["capability"][0]), int(filled["capability"][1])), dict(filled["parts"])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        print(f"{folder} was not filled: it has no valid {MANIFEST}; `python bench/kernel_cache.py fill` makes it")
        return 1
    if not (pretended or torch.cuda.is_available()):
        print("there is no CUDA device here; --pretended tries the files without one")
        return 3
    here = capability if pretended else torch.cuda.get_device_capability()
    with patch.dict(os.environ, SMALL):
        now = key_parts(10 * here[0] + here[1])
    differing = [f"{name}: {parts.get(name)} there, {word} here" for name, word in now.items() if parts.get(name) != word]
    if here != capability:
        differing.insert(0, f"filled for {capability[0]}.{capability[1]}, this device has {here[0]}.{here[1]}")
    if differing:
        print("\n".join(["Triton will compile anew, because its keys differ:", *differing]))
        return 1
    number = adopt(folder)
    missing = [path for path in files(folder) if not path.exists()]
    if missing:
        print(f"{missing[0].relative_to(folder)} is missing, one of {len(missing)} files: carry the whole folder")
        return 1
    with ExitStack() as stack:
        if pretended:
            stack.enter_context(as_on(capability))
        stack.enter_context(patch.dict(os.environ, {**SMALL, "TRITON_CACHE_DIR": str(folder.resolve())}))
        kernels = stack.enter_context(compiled_ahead.counted())
        make_calls(chosen(PROBES), "cpu" if pretended else "cuda")
    print(f"{number} kernels for sm_{10 * here[0] + here[1]}; a few calls took {kernels}")
    return int(kernels.compiled > 0 or kernels.found == 0)


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal() and (8, 0) <= (int(major), int(minor)) <= (12, 9)):
        raise argparse.ArgumentTypeError(f"`{text}` is no compute capability from 8.0 to 12.9, such as 9.0")
    return int(major), int(minor)


def _stages(text: str) -> list[str]:
    if unknown := [each for each in text.split(",") if each not in (*STAGES, "probes")]:
        raise argparse.ArgumentTypeError(f"`{unknown[0]}` is none of {', '.join(STAGES)}")
    return text.split(",")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    filling = commands.add_parser("fill", help="compile on a CPU for a GPU that is not there")
    filling.add_argument("folder", type=Path)
    filling.add_argument("--capability", type=_capability, required=True, help="of the GPU, such as 9.0")
    filling.add_argument("--stages", type=_stages, default=list(STAGES), help=f"of {','.join(STAGES)}")
    filling.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    filling.add_argument("--rank", type=int, help="of one process alone, which does its share of one stage")
    checking = commands.add_parser("check", help="count the kernels that Triton finds here")
    checking.add_argument("folder", type=Path)
    checking.add_argument("--pretended", action="store_true", help="without a device: try the files where they were made")
    options = parser.parse_args(words)
    if options.command == "check":
        return check(options.folder, options.pretended)
    if options.rank is not None:
        fill_share(options.stages[0], options.capability, options.rank, options.workers)
        return 0
    return int(fill(options.folder, options.capability, options.stages, options.workers) > 0)


if __name__ == "__main__":
    sys.exit(main())
