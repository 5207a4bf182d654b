"""torch as it runs here: its build, threads, instructions, cuDNN, FlashAttention, and the devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..catalogue import Catalogue
from ..errors import Diagnostic
from ..graph import Graph, Target, refusals
from ..slots.processor_kernels import Float32Kernel, Int8Kernel
from ..view.plan_data import in_short, planned
from ..view.sites import all_sites, fold
from .installation import Findings, in_one_line

DRIVER = Path("/proc/driver/nvidia/version")
"""Exists where the kernel has a driver of NVIDIA."""


def torch_here(findings: Findings, processors: int, catalogue: Catalogue) -> dict[str, Any] | None:
    """What torch says about itself; None, and a problem, if it cannot be imported."""
    try:
        import torch
    except (Exception, SystemExit) as reason:  # a broken library raises OSError or ImportError
        sys.modules["torch"] = None  # type: ignore[assignment]  # a second attempt can end the process
        diagnostic = torch_failed(reason)
        findings.problem(diagnostic.message, diagnostic.fix)
        return None
    threads = torch.get_num_threads()
    if threads > processors:
        what = f"torch computes with {threads} threads, and this process may use {processors} processors"
        findings.note(what, f"set OMP_NUM_THREADS={processors}")
    _check_cuda(findings)
    int8 = catalogue.entries("int8_kernel")
    return {
        "version": str(torch.__version__),
        "path": str(Path(torch.__file__).parent),
        "cuda": torch.version.cuda,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "onednn": torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
        "int8": low_precision("int8", int8),
        "bfloat16": low_precision("bfloat16", int8),
        "products": products(catalogue.entries("float32_kernel")),
        "cudnn": _cudnn(),
        "flash": flash(),
    }


def torch_failed(reason: BaseException) -> Diagnostic:
    """The error about a torch that cannot be imported."""
    variables = ", ".join(sorted(name for name in os.environ if name.startswith(("TORCH_", "PYTORCH_"))))
    fix = "pip install --force-reinstall torch (https://pytorch.org/get-started/locally)"
    fix = f"correct or unset {variables}" if variables else fix
    return Diagnostic("TFK097", f"torch cannot be imported: {in_one_line(reason)[:200]}", fix)


def low_precision(precision: str, kernels: Sequence[Int8Kernel]) -> str | None:
    """How the products of a precision are computed here with the installed int8 kernels; None if they are not."""
    from ..nn.precision import LOW_PRECISIONS

    return LOW_PRECISIONS[precision].kernel(kernels)


def products(kernels: Sequence[Float32Kernel]) -> dict[str, Any]:
    """How the float32 products of decoding on a CPU are chosen."""
    from ..cpu.small_batch import products_here

    return products_here(kernels)


def _check_cuda(findings: Findings) -> None:
    import torch

    if not DRIVER.exists() or torch.cuda.is_available():
        return
    if torch.version.cuda is None and torch.version.hip is None:
        findings.note("this machine has an NVIDIA driver, and torch is a CPU build", "install the CUDA build of torch")
        return
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        reason = "it finds no device"
    except Exception as error:  # a driver that is too old, a device in use, ...
        reason = in_one_line(error)
    fix = "compare `nvidia-smi` with the CUDA version of torch; CUDA_VISIBLE_DEVICES may hide the device"
    findings.problem(f"this machine has an NVIDIA driver, and torch cannot use it: {reason}", fix)


def _cudnn() -> dict[str, Any] | None:
    """The version and the path of the cuDNN that this process loaded, which may not be the one that torch was built with."""
    import torch

    try:
        number = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    except RuntimeError as reason:  # torch refuses a runtime that is older than the one it was built with
        return {"version": None, "path": loaded("libcudnn"), "reason": in_one_line(reason)}
    return None if number is None else {"version": number, "path": loaded("libcudnn")}


def loaded(library: str) -> str | None:
    """The file of a library that this process has loaded. The shortest name is the main library of several."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[5] for line in lines if f"/{library}" in line and len(line.split(maxsplit=5)) == 6}
    return min(paths, key=lambda path: (len(Path(path).name), path), default=None)


def flash() -> dict[str, Any] | None:
    """The FlashAttention implementation that sdpa uses on CUDA, `default` for torch's own; None where torch does not say."""
    import torch.nn.attention as attention

    current = getattr(attention, "current_flash_attention_impl", None)
    listed = getattr(attention, "list_flash_attention_impls", None)
    if current is None:
        return None
    return {"active": current() or "default", "registered": sorted(map(str, listed())) if listed else []}


def triton_here() -> str | None:
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def devices(machine: dict[str, Any]) -> list[dict[str, Any]]:
    """The CPU and every CUDA device."""
    cpu = {"name": "cpu", "what": machine["processor"], "memory_bytes": machine["memory_bytes"], "cuda_capability": None}
    try:
        import torch

        count = torch.cuda.device_count()
    except (Exception, SystemExit):  # already a problem
        return [cpu]
    described = [cpu]
    for index in range(count):
        facts = torch.cuda.get_device_properties(index)
        capability = [facts.major, facts.minor]
        place = {"name": f"cuda:{index}", "what": facts.name, "memory_bytes": facts.total_memory}
        described.append({**place, "cuda_capability": capability})
    return described


def model_here(
    graph: Graph, dtype: str, item_size: int, devices: list[dict[str, Any]], catalogue: Catalogue, findings: Findings
) -> dict[str, Any]:
    """The plan on each device. A model that fits on none, and a site that no device can serve, are problems."""
    groups = fold(all_sites(graph).items())
    size = (graph.parameters() + graph.parameters(trainable=False)) * item_size
    rows, served = [], set()
    for device in devices:
        kind, capability = device["name"].partition(":")[0], device["cuda_capability"]
        targets = [Target(kind, tuple(capability) if capability else None, dtype, training) for training in (True, False)]
        plans = [planned(groups, catalogue, target) for target in targets]
        for (group, training), (_, inference) in zip(*plans, strict=True):
            chosen = [
                in_short(site_plans) if all(plan.chosen for plan in site_plans) else None
                for site_plans in (training, inference)
            ]
            rows.append({"name": group.name, "device": device["name"], "training": chosen[0], "inference": chosen[1]})
            if chosen[1] is not None:
                served.add(group.name)
    for group in groups:
        if group.name not in served:
            for diagnostic in refusals([(group.name, group.site)], catalogue, Target("cpu", None, dtype, False)):
                findings.problem(
                    f"no device here can serve {group.name}: {diagnostic.message}", diagnostic.fix or "change `backend`"
                )
    if all(size > device["memory_bytes"] for device in devices):
        largest = max(device["memory_bytes"] for device in devices)
        what = f"the weights need {size:,} bytes in {dtype}, and the largest memory here has {largest:,}"
        findings.problem(what, "make the model smaller, or choose a smaller dtype")
    return {"name": graph.name, "dtype": dtype, "weight_bytes": size, "sites": rows}
