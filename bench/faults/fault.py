"""Faults: each is a small change of the text of a correct kernel.

read_faults()              those of all sets, in the order of their files
load_kernel("blind/chunks")   the correct kernel as a module of its own
load_fault(fault)          the changed one
witness(fault, module)     whether a module gives a wrong result in the call that shows the fault
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType

import torch
import yaml

HERE = Path(__file__).parent
SETS = ("blind", "informed", "third", "fourth", "fifth", "sixth", "seventh")
KERNELS = {
    "blind": ("chunks", "splits", "folded", "workspace"),
    "informed": ("chunks", "parts", "groups", "tables"),
    "third": ("twopass", "packed"),
    "fourth": ("twopass", "packed"),
    "fifth": ("twopass", "packed"),
    "sixth": ("twopass", "packed"),
    "seventh": ("ragged",),
}
_numbers = count()


@dataclass(frozen=True)
class Fault:
    """Each `old` occurs once in the text of the kernel and becomes its `new`."""

    set: str
    name: str
    kernel: str
    kind: str
    summary: str
    changes: tuple[tuple[str, str], ...]

    def text(self) -> str:
        text = kernel_text(self.set, self.kernel)
        for old, new in self.changes:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: occurs {text.count(old)} times in {self.set}/{self.kernel}.py: {old!r}")
            text = text.replace(old, new)
        return text


def read_faults() -> list[Fault]:
    return [
        Fault(group, name, row["kernel"], row["kind"], row["summary"],
              tuple((change["old"], change["new"]) for change in row.get("changes", [row])))
        for group in SETS
        for name, row in yaml.safe_load((HERE / group / "faults.yaml").read_text(encoding="utf-8")).items()
    ]  # fmt: skip


def kernel_text(group: str, kernel: str) -> str:
    folder = "third" if group in ("fourth", "fifth", "sixth") else group  # they share their kernels
    return (HERE / folder / f"{kernel}.py").read_text(encoding="utf-8")


def load_kernel(group: str, kernel: str) -> ModuleType:
    return _module(kernel_text(group, kernel))


def load_fault(fault: Fault) -> ModuleType:
    return _module(fault.text())


def _module(text: str) -> ModuleType:
    """A module with this text in a file, so that its source can be read, and with a name that says nothing."""
    name = f"kernel_{next(_numbers)}"
    path = Path(tempfile.mkdtemp(prefix="fault-")) / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: `attend` of its declaration is "name:attend"
    spec.loader.exec_module(module)
    return module


def witness(fault: Fault, module: ModuleType) -> bool:
    """Whether the module is wrong in the calls that show the fault. The random state stays as it was."""
    shown = importlib.import_module(f"{fault.set}.witnesses").WITNESSES[fault.name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return bool(shown(module))
