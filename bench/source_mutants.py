"""How well the conformance suite checks kernels: random changes of the source of correct kernels, and which profile sees them.

    python bench/source_mutants.py --mutmut DIR --count 5000              # all: bench/results/source_mutants.json
    python bench/source_mutants.py --mutmut DIR --profile standard        # its survivors again, with another profile

Every operator of mutmut 3 (https://mutmut.readthedocs.io) is applied to every place of correct kernels in plain torch, and
three of our own for what mutmut leaves alone: bounds of slices, transposes, the order of a matrix product. `--count` of these
mutants are drawn. Each runs in a fork of one process, with limits of time and memory, under `check_backend` until the first
finding. Results are written as they come, and a run goes on where an earlier one stopped. DIR is where `pip install --target
DIR mutmut` has put it: it is no dependency of the project. A survivor is explained in `source_mutants_explained.json`, by its
function and a pattern of its new line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import resource
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "tfkit-conformance" / "tests"))  # holds the kill matrix

from tfkit.catalogue import load_catalogue
from tfkit.slots.lazy import load
from tfkit_conformance.attention.backend_under_test import BackendUnderTest, backend_under_test
from tfkit_conformance.callables.check import function_under_test
from tfkit_conformance.suite.conformance import check_backend

RESULTS = Path(__file__).parent / "results"
SECONDS, MEMORY = 600, 2 << 30
"""What one mutant may take: processor time, and bytes beyond what the first process has."""
INDEPENDENT = "kill_matrix.independent_kernels"
KERNELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "example.online": ("tfkit_example_backend.online", ()),
    "blockwise": ("tfkit_conformance.mutants.kernel.passes", ()),
    "whole": ("kill_matrix.correct_kernels", ("_whole",)),
    "eager": ("tfkit.builtin.attention.eager", ()),
    "few": ("tfkit.cpu.few_queries", ("attend",)),  # the other function chooses between two correct ways
    **{name: (INDEPENDENT, (name,)) for name in import_module(INDEPENDENT).INDEPENDENT},
}
"""By name: the module, and its functions that are changed, all of them where none is named."""
DTYPES = ("float32", "bfloat16", "float16", "float64")
TEXT_ONLY = ("require_capabilities", "BackendRefused", "Diagnostic")
"""Calls whose change would only be one of a message or of a declaration."""


@dataclass(frozen=True)
class SourceMutant:
    """One change: the kernel, the function, the operator, the lines before and after, the whole source."""

    kernel: str
    function: str
    operator: str
    was: str
    now: str
    source: str

    @property
    def key(self) -> str:
        return f"{self.kernel}: {self.function}: {self.was} -> {self.now}"


def subject_of(kernel: str) -> BackendUnderTest:
    module = import_module(KERNELS[kernel][0])
    if module.__name__ == INDEPENDENT:
        function, supports = module.INDEPENDENT[kernel]
        return function_under_test(function, "additive_mask", supports=[*supports, "strides"], dtypes=DTYPES).subject
    if kernel in ("example.online", "eager", "few"):
        load.cache_clear()  # of the unchanged functions
        entry = load_catalogue().find("backend", {"few": "sdpa"}.get(kernel, kernel))
        return backend_under_test(entry, **({"attend": module.attend} if kernel == "example.online" else {}))
    name = {"blockwise": "online_64", "whole": "whole"}[kernel]
    [found] = [each for each in import_module("kill_matrix.correct_kernels").CORRECT_KERNELS if each.name == name]
    return backend_under_test(found.entry, attend=found.attend, tf32=found.tf32)


def operators() -> list[tuple[Any, Any]]:
    """Those of mutmut, and those for slices, each with the type of its nodes."""
    import libcst
    from mutmut.mutation.mutators import mutation_operators

    def operator_slice(node: libcst.Slice) -> Iterator[libcst.Slice]:
        for bound in ("lower", "upper"):
            if getattr(node, bound) is not None:
                yield node.with_changes(**{bound: None})

    def operator_transpose(node: libcst.Attribute) -> Iterator[libcst.BaseExpression]:
        if node.attr.value == "mT":
            yield node.value

    def operator_matmul(node: libcst.BinaryOperation) -> Iterator[libcst.BaseExpression]:
        if isinstance(node.operator, libcst.MatrixMultiply):
            yield node.with_changes(left=node.right, right=node.left)

    return [
        *mutation_operators, (libcst.Slice, operator_slice), (libcst.Attribute, operator_transpose),
        (libcst.BinaryOperation, operator_matmul),
    ]  # fmt: skip


def mutants_of(kernel: str) -> Iterator[SourceMutant]:
    """Every change of the functions of a kernel, without those of annotations, texts and refusals."""
    import libcst

    name, functions = KERNELS[kernel]
    module: ModuleType = import_module(name)
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    tree, chosen, seen = libcst.parse_module(source), operators(), set()

    def inside(node: libcst.CSTNode, top: libcst.CSTNode, function: str) -> Iterator[SourceMutant]:
        if isinstance(node, (libcst.Annotation, libcst.Decorator, libcst.SimpleString, libcst.FormattedString)):
            return
        if isinstance(node, libcst.Call) and getattr(node.func, "value", None) in TEXT_ONLY:
            return
        for kind, operator in chosen:
            if isinstance(node, kind):
                for new in operator(node):
                    was, now = tree.code_for_node(top), tree.code_for_node(top.deep_replace(node, new))
                    if now not in seen and now != was:
                        seen.add(now)
                        yield SourceMutant(
                            kernel, function, operator.__name__, *changed_lines(was, now), source.replace(was, now, 1)
                        )
        for child in node.children:
            yield from inside(child, top, child.name.value if isinstance(child, libcst.FunctionDef) else function)

    for top in tree.body:
        if isinstance(top, (libcst.FunctionDef, libcst.ClassDef)) and (not functions or top.name.value in functions):
            for found in inside(top, top, top.name.value):
                with suppress(SyntaxError):
                    compile(found.source, "mutant", "exec")
                    yield found


def changed_lines(before: str, after: str) -> tuple[str, str]:
    old, new = before.splitlines(), after.splitlines()
    for tag, i, j, k, n in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            return " ".join(map(str.strip, old[i:j])), " ".join(map(str.strip, new[k:n]))
    return "", ""


def install(mutant: SourceMutant) -> None:
    """Put the changed functions and classes in the place of the old ones, wherever they were imported."""
    module = import_module(KERNELS[mutant.kernel][0])
    old = dict(vars(module))
    exec(compile(mutant.source, str(module.__file__), "exec"), vars(module))
    new = {id(value): vars(module)[name] for name, value in old.items() if callable(value) and vars(module)[name] is not value}
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith(("tfkit", "kill_matrix")):
            for name, value in list(vars(other).items()):
                if id(value) in new:
                    setattr(other, name, new[id(value)])


class Run:
    """One mutant under one profile, in a fork of this process."""

    def __init__(self, mutant: SourceMutant, profile: str) -> None:
        self.mutant = mutant
        self._reader, writer = os.pipe()
        self._number = os.fork()
        if not self._number:
            code = 1
            with suppress(BaseException):
                _judge(mutant, profile, writer)
                code = 0
            os._exit(code)
        os.close(writer)

    def fileno(self) -> int:
        return self._reader

    def end(self) -> str:
        """Wait for it: the check that sees the mutant, "import", "crash" or "time", or nothing."""
        with os.fdopen(self._reader) as said:
            found = said.read()
        _, status = os.waitpid(self._number, 0)
        if os.WIFSIGNALED(status):
            return "time" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "crash"
        return found if os.WEXITSTATUS(status) == 0 else "crash"


def _judge(mutant: SourceMutant, profile: str, writer: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY,) * 2)
    try:
        install(mutant)
        subject = subject_of(mutant.kernel)
    except Exception:  # a mutant may break its own import in any way
        os.write(writer, b"import")
        return
    report = check_backend(subject, profile=profile, stop_at_first=True, shrink_steps=0, limit=30.0)
    failed = [check.name for check in report.checks if check.status == "failed"]
    os.write(writer, (failed[0] if failed else "").encode())


def results(
    mutants: Sequence[SourceMutant], profile: str, processes: int, minutes: float
) -> Iterator[tuple[SourceMutant, str]]:
    """Each mutant with what sees it, as they end, `processes` at a time."""
    waiting, running, started = list(reversed(mutants)), set(), time.monotonic()
    while waiting or running:
        while waiting and len(running) < processes:
            if time.monotonic() - started > 60 * minutes:
                waiting.clear()
            else:
                running.add(Run(waiting.pop(), profile))
        for run in select.select(running, (), ())[0] if running else ():
            running.remove(run)
            yield run.mutant, run.end()


def explanation(mutant: dict[str, Any], explained: list[dict[str, str]]) -> str:
    """Why nothing can see this mutant, or why the suite does not: the entry whose function and pattern of the new line fit."""
    for entry in explained:
        if entry["function"] in (mutant["function"], "*") and re.search(entry["now"], mutant["now"]):
            return entry["why"]
    return ""


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutmut", type=Path, help="the directory that holds mutmut and libcst")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--match", default="", help="of these, only those whose key this pattern finds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", default="quick", choices=["quick", "standard", "deep"])
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no mutant after so many")
    parser.add_argument("--json", type=Path, default=RESULTS / "source_mutants.json")
    options = parser.parse_args(words)
    if options.mutmut:
        sys.path.append(str(options.mutmut))  # last: its own click and rich are not ours
    torch.set_num_threads(1)
    for kernel in KERNELS:
        subject_of(kernel)  # what is imported here is imported once
    made = [mutant for kernel in KERNELS for mutant in mutants_of(kernel)]
    exist = Counter(each.kernel for each in made)
    drawn = {mutant.key: mutant for mutant in random.Random(options.seed).sample(made, min(options.count, len(made)))}
    explained_file = options.json.with_name("source_mutants_explained.json")
    explained = json.loads(explained_file.read_text()) if explained_file.exists() else []
    held = json.loads(options.json.read_text())["rows"] if options.json.exists() else []
    exists = {mutant.key for mutant in made}  # the source may have changed since
    rows = {row["key"]: row | {"why": explanation(row, explained)} for row in held if row["key"] in exists}

    def is_left(mutant: SourceMutant) -> bool:
        seen = rows.get(mutant.key, {}).get("killed_by", {})
        return options.profile not in seen and not any(seen.values())

    left = [mutant for mutant in drawn.values() if is_left(mutant) and re.search(options.match, mutant.key)]
    found = summary(list(rows.values()), exist, options.seed)
    options.json.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    for mutant, check in results(left, options.profile, options.processes, options.minutes):
        print(f"{options.profile:9}{check or 'SURVIVED':24}{mutant.key}", flush=True)
        row = rows.setdefault(mutant.key, {"key": mutant.key, **asdict(mutant), "killed_by": {}})
        row.pop("source", None)
        row["killed_by"][options.profile] = check
        row["why"] = explanation(row, explained)
        found = summary(list(rows.values()), exist, options.seed)
        options.json.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    return found


def summary(rows: list[dict[str, Any]], exist: Counter[str], seed: int) -> dict[str, Any]:
    ran = [row for row in rows if row["killed_by"]]
    killed = [row for row in ran if any(row["killed_by"].values())]
    survivors = [{"key": row["key"], "why": row.get("why", "")} for row in ran if row not in killed]
    return {
        "how": "python bench/source_mutants.py --mutmut DIR", "seed": seed, "torch": torch.__version__,
        "python": platform.python_version(), "exist": exist, "evaluated": len(ran), "killed": len(killed),
        "by_check": Counter(name for row in killed for name in row["killed_by"].values() if name),
        "survivors": survivors, "rows": rows,
    }  # fmt: skip


if __name__ == "__main__":
    main()
