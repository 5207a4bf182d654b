"""The doctor: what is installed on this machine, what of it is broken, and how to repair it.

The data that `tfkit doctor --json` prints. Home directories are written `~`; names of users and hosts are left out.

ok           whether there are no problems
problems     what (one sentence), fix
notes        what is no fault but may surprise: what, fix
tfkit        version, contract (between tfkit and its plugins), path
python       version, implementation, path
machine      system, processor, processors (that this process may use), memory_bytes, instructions (sets of the processor)
torch        version, path, cuda (the version it was built for; null for a CPU build), capability (the instructions that its
             kernels use), threads, onednn, int8 and bfloat16 (how their products are computed; null if this processor
             cannot), products (how the float32 products of decoding are chosen: rule, table, weights, threads; plain, those of
             training: by, processors, machine and ratio of the measurement that decides), cudnn (version and path of the loaded
             library; null without one), flash (the active FlashAttention implementation and those that are registered; null
             where torch does not say); null if torch cannot be imported
triton       its version, or null
ptxas        the assembler that Triton would compile with: version, path; null without one
devices      name (cpu, cuda:0), what, memory_bytes, cuda_capability
variables    environment variables that change how torch runs, by name
extras       name, installed, install (the command), packages (name, required, version, or null where it is missing)
plugins      name, distribution, version
model        with a spec or a model: name, weight_bytes, dtype, sites (name, device, training, inference: the backends that
             would be used, null for none)
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..slots.options import CONTRACT
from .installation import Findings, catalogue_here, extras, machine_here, plugins_here, python_here, tfkit_version, variables
from .ptxas import ptxas_here
from .torch_facts import devices, torch_here, triton_here

__all__ = ["Findings", "catalogue_here", "diagnosis", "without_home"]


def diagnosis(findings: Findings) -> dict[str, Any]:
    """Everything about this machine; problems are added to `findings`."""
    system, catalogue = machine_here(), catalogue_here(findings)
    torch = torch_here(findings, system["processors"], catalogue)
    return {
        "tfkit": {"version": tfkit_version(findings), "contract": CONTRACT, "path": str(Path(__file__).parents[1])},
        "python": python_here(),
        "machine": system,
        "torch": torch,
        "triton": triton_here(),
        "ptxas": ptxas_here(findings),
        "devices": devices(system),
        "variables": variables(),
        "extras": extras(findings),
        "plugins": plugins_here(catalogue, findings, with_code=torch is not None),
    }


def without_home(data: Any) -> Any:
    """The data with the home directory written `~`, so that a report names no user."""
    homes = {str(home) for home in (Path.home(), Path.home().resolve())} - {"/"}
    pattern = re.compile(rf"(?:{'|'.join(map(re.escape, sorted(homes, key=len, reverse=True)))})(?![\w.-])")

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [walk(item) for item in value]
        return pattern.sub("~", value) if isinstance(value, str) and homes else value

    return walk(data)
