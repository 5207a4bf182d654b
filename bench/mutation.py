"""How well the mask rendering, the reference and the bound are tested: mutants of their code, and who notices.

    python bench/mutation.py run --mutmut PATH      # every mutant of mutmut 3 (https://mutmut.readthedocs.io), about an hour
    python bench/mutation.py constants              # the bound's constants, each times 8 and by 8, evaluated both ways

`run` copies the tree, lets mutmut change the three files there, one mutant at a time, and runs the tests that are about them.
A mutant that no test notices needs an explanation in `mutation_explained.json`, found by its function and its changed line: why
it changes nothing, or why nothing here can notice. Exit code 1 where one has none. mutmut is no dependency of the project;
install it wherever its `mutmut` can import what the tests import.

`constants` takes the outputs of correct kernels and mutants on a set of calls, and evaluates them by the bound with one
constant changed: a bound that is too loose must miss a mutant, one that is too tight must raise a false alarm.
Both write into `results/mutation.json`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "tfkit-conformance" / "tests"))  # holds the kill matrix

from kill_matrix.correct_kernels import CORRECT_KERNELS
from tfkit.errors import TfkitError
from tfkit_conformance.attention import bound
from tfkit_conformance.attention.compare import gradients_of
from tfkit_conformance.attention.reference import reference
from tfkit_conformance.attention.table import CASES
from tfkit_conformance.finding import Violation
from tfkit_conformance.mutants import ATTENTION_MUTANTS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "mutation.json"
EXPLAINED = ROOT / "bench" / "results" / "mutation_explained.json"
KIT = "plugins/tfkit-conformance/"
MUTATED = (
    "tfkit/attention/rendering.py", f"{KIT}tfkit_conformance/attention/reference.py",
    f"{KIT}tfkit_conformance/attention/bound.py",
)  # fmt: skip
TESTS = (
    "tests/test_rendering.py", f"{KIT}tests/test_reference.py", f"{KIT}tests/test_bound.py",
    f"{KIT}tests/test_bound_formula.py", "tests/builtin/attention",
)  # fmt: skip
SLOW = "not flex and not compiled and not measuring"
CONFIG = f"""
[tool.mutmut]
source_paths = ["tfkit"]
only_mutate = {json.dumps(MUTATED, allow_nan=False)}
also_copy = ["README.md"]
use_git_change_detection = false
track_dependencies = false
timeout_multiplier = 30.0
timeout_constant = 60.0
pytest_add_cli_args = ["-q", "-p", "no:cacheprovider", "-k", "{SLOW}"]
pytest_add_cli_args_test_selection = {json.dumps(TESTS, allow_nan=False)}
"""
OUTCOMES = {
    0: "survived",
    1: "killed",
    3: "killed",
    33: "no tests",
    24: "timeout",
    36: "timeout",
    152: "timeout",
    255: "timeout",
}


def run(mutmut: str, tree: Path) -> int:
    """All mutants of mutmut in a copy of the tree; how many survivors have no explanation."""
    for name in ("tfkit", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "README.md", tree)
    (tree / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + CONFIG)
    subprocess.run([mutmut, "run", "--max-children", "1"], cwd=tree, check=False)
    return collect(mutmut, tree)


def collect(mutmut: str, tree: Path) -> int:
    """What a finished run in `tree` found, into the results."""
    files, survivors = {}, []
    explained = json.loads(EXPLAINED.read_text()) if EXPLAINED.exists() else []
    for path in MUTATED:
        codes = json.loads((tree / "mutants" / f"{path}.meta").read_text())["exit_code_by_key"]
        outcomes = {name: OUTCOMES.get(code, f"exit code {code}") for name, code in codes.items()}
        files[path] = {word: list(outcomes.values()).count(word) for word in sorted(set(outcomes.values()))}
        for name in (name for name, outcome in outcomes.items() if outcome == "survived"):
            shown = subprocess.run([mutmut, "show", name], cwd=tree, capture_output=True, text=True, check=True).stdout
            removed, added = changed(shown)
            function = re.sub(r"^.*\.x_|__mutmut_\d+$", "", name)
            survivors.append(
                {
                    "file": path,
                    "function": function,
                    "was": removed,
                    "is": added,
                    "why": why(explained, function, removed, added),
                }
            )
    version = subprocess.run([mutmut, "--version"], cwd=tree, capture_output=True, text=True, check=True).stdout.split()[-1]
    store("mutmut", {"version": version, "tests": list(TESTS), "deselected": SLOW, "files": files, "survivors": survivors})
    unexplained = [survivor for survivor in survivors if not survivor["why"]]
    for survivor in unexplained:
        print(f"{survivor['function']}:\n  - {survivor['was']}\n  + {survivor['is']}")
    print(f"{files}\n{len(survivors)} survivors, {len(unexplained)} of them unexplained")
    return len(unexplained)


def changed(shown: str) -> tuple[str, str]:
    """The lines that a mutant takes away and puts in."""
    lines = [line for line in shown.splitlines() if not line.startswith(("---", "+++"))]
    return tuple("\n".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")  # type: ignore[return-value]


def why(explained: list[dict[str, str]], function: str, removed: str, added: str) -> str:
    """The explanation whose function, and whose piece of the new line or pattern of it, fit."""
    for entry in explained:
        if entry["function"] in (function, "*") and entry.get("was", removed) in removed and re.search(entry["is"], added):
            return entry["why"]
    return ""


def store(section: str, found: dict[str, Any]) -> None:
    """Put a section into the results; the others stay."""
    held = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    held |= {"how": "python bench/mutation.py run --mutmut PATH; python bench/mutation.py constants", section: found}
    RESULTS.write_text(json.dumps(held, indent=1, allow_nan=False) + "\n")


@dataclass(frozen=True)
class Given:
    """What one kernel gave on one call: the tensors by name, beside the reference that evaluates them."""

    kernel: str
    right: bool
    cell: int
    tensors: dict[str, Any]


CALLED = (
    "plain_square", "causal_offset", "grouped", "one_group", "value_dim", "dense_bias", "linear_bias", "distance_bias",
    "softcap", "softcap_bias", "no_keys", "many_keys",
)  # fmt: skip
REGIMES = ("normal", "large", "peaked", "offset_values", "wide_values")
FAMILIES = ("masks", "fully_masked_rows", "softmax", "heads", "backward", "bias")


def cells(few: bool = False) -> list[Any]:
    """The calls: named ones, and two of them in every regime."""
    named = [case for case in CASES if case.name in CALLED[: 2 if few else None]]
    drawn = [replace(case, regime=regime) for case in named[:2] for regime in REGIMES[1:]]
    dtypes = ("bfloat16",) if few else ("float32", "bfloat16", "float16")
    asked = [replace(case, lse=True, weights=True) for case in (*named, *([] if few else drawn))]
    return [replace(case, dtype=dtype) for dtype in dtypes for case in asked]


def given(calls: list[Any], few: bool = False) -> list[Given]:
    """What every correct kernel and every mutant gives on every call it takes."""
    found = []
    kernels = [(kernel.name, True, kernel.attend) for kernel in CORRECT_KERNELS if kernel.name != "tf32"]
    kernels += [(mutant.name, False, mutant.attend) for mutant in ATTENTION_MUTANTS if mutant.family in FAMILIES]
    for name, right, attend in kernels[:: 9 if few else 1]:
        for number, case in enumerate(calls):
            inputs, towards = case.inputs(), case.grad_output()
            try:
                gave = attend(inputs, None)
                tensors = {"output": gave.output.detach(), "lse": gave.lse, "weights": gave.weights}
                tensors |= gradients_of(gave.output, inputs, towards)
            except (TfkitError, Violation, RuntimeError):
                continue  # refused here, or no gradient: other checks' business
            found.append(Given(name, right, number, tensors))
    return found


@dataclass
class Evaluation:
    """Calls with their references, and the answers to be evaluated."""

    calls: list[Any]
    answers: list[Given]

    def __post_init__(self) -> None:
        self.references = [reference(case.inputs(), case.grad_output()) for case in self.calls]
        self.numerics = {kernel.name: kernel.capabilities.numerics for kernel in CORRECT_KERNELS}
        self.numerics |= {mutant.name: mutant.capabilities.numerics for mutant in ATTENTION_MUTANTS}

    def false_alarms(self, bounds: Any) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
        """The answers outside a bound: those of mutants (detections), and those of correct kernels (false alarms)."""
        made: dict[Any, Any] = {}
        wrong, right = set(), set()
        for answer in self.answers:
            found, kind = self.references[answer.cell], self.numerics[answer.kernel]
            key = (answer.cell, str(kind))
            limits = made[key] = made.get(key) or bounds(found, kind, False)
            if not bool(limits.evaluated.all()):
                continue
            wanted = {name: (getattr(found, name), getattr(limits, name)) for name in ("output", "lse", "weights")}
            wanted |= {leaf: (found.gradients[leaf], limits.gradients[leaf]) for leaf in limits.gradients}
            if any(bound.worst_ratio(tensor, *wanted[name]) > 1 for name, tensor in answer.tensors.items()):
                (right if answer.right else wrong).add((answer.kernel, answer.cell))
        return wrong, right


class Scale(ast.NodeTransformer):
    """The module with its n-th constant multiplied; powers of two count as one constant."""

    def __init__(self, number: int, factor: float) -> None:
        self.number, self.factor, self.met, self.line, self.text = number, factor, -1, 0, ""

    def visit(self, node: ast.AST) -> Any:
        power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.left, ast.Constant)
        plain = isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value != 0
        if power or plain:
            return self.taken(node)
        if isinstance(node, (ast.Subscript, ast.Call, ast.AnnAssign, ast.FunctionDef)):
            return self.inside(node)
        return self.generic_visit(node)

    def inside(self, node: Any) -> Any:
        """Indices, axes and the limits of `range` are no constants of the bound."""
        if isinstance(node, ast.Subscript):
            node.value = self.visit(node.value)
        elif isinstance(node, ast.Call):
            node.func = self.visit(node.func)
            reduces = isinstance(node.func, ast.Attribute) and node.func.attr in ("sum", "amax", "unbind", "stack")
            node.args = [
                argument if reduces and isinstance(argument, ast.UnaryOp) else self.visit(argument) for argument in node.args
            ]
            for keyword in node.keywords:
                if keyword.arg in ("min", "max"):
                    keyword.value = self.visit(keyword.value)
        else:
            return self.generic_visit(node)
        return node

    def taken(self, node: Any) -> Any:
        self.met += 1
        if self.met != self.number:
            return node
        self.line, self.text = node.lineno, ast.unparse(node)
        return ast.copy_location(ast.BinOp(node, ast.Mult(), ast.Constant(self.factor)), node)


def scaled(number: int, factor: float) -> tuple[dict[str, Any], Scale]:
    """The names of a bound with one constant changed."""
    scale = Scale(number, factor)
    tree = ast.fix_missing_locations(scale.visit(ast.parse(Path(bound.__file__).read_text())))
    made: dict[str, Any] = {"__name__": bound.__name__, "__package__": "tfkit_conformance.attention"}
    if scale.line:
        exec(compile(tree, bound.__file__, "exec"), made)
    return made, scale


class Formula:
    """The calls on which the tests hold every bound against plain loops."""

    def __init__(self, few: bool) -> None:
        sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "testing")]
        from test_bound_formula import CASES as PLACES, CLASSES

        drawn = torch.bernoulli(torch.full((2, 4, 3, 5), 0.6), generator=torch.Generator().manual_seed(0)) / 0.6
        dtypes = ("float64", "float32", "bfloat16", "float16")
        self.calls = []
        for case in [replace(place, dtype=dtype) for place in PLACES[: 1 if few else None] for dtype in dtypes]:
            made = reference(case.inputs(), case.grad_output())
            self.calls += [(made, kind) for kind in CLASSES.values()]
        for dtype in ("float32", "float16"):
            case = replace(PLACES[1], dtype=dtype)
            self.calls.append((reference(case.inputs(), case.grad_output(), drawn), CLASSES["fused"]))
            for place, factor, kind in ((0, 40.0, "stored"), (0, 3e4, "scores"), (3, 1e4, "fused"), (1, 1e4, "fused")):
                inputs = replace(PLACES[place], dtype=dtype).inputs()
                made = reference(replace(inputs, scale=inputs.scale * factor), case.grad_output())
                self.calls.append((made, CLASSES[kind]))
        self.plain = [tensors(bound.bounds(found, kind, True)) for found, kind in self.calls]

    def moves(self, bounds: Any) -> tuple[float, float]:
        """By how much a changed bound is the smallest and the largest multiple of the right one."""
        low, high = 1.0, 1.0
        for (found, kind), plain in zip(self.calls, self.plain, strict=True):
            for got, want in zip(tensors(bounds(found, kind, True)), plain, strict=True):
                ratio = got.double() / want.double().clamp_min(1e-320)
                ratio = torch.where(got == want, 1.0, ratio)
                low, high = min(low, float(ratio.min())), max(high, float(ratio.max()))
        return low, high


def tensors(made: Any) -> list[torch.Tensor]:
    return [made.output, made.weights, made.lse, made.evaluated, *made.gradients.values()]


def constants(few: bool = False) -> dict[str, Any]:
    """Each constant of the bound times 8 and by 8: detections lost, false alarms, and by how much the bound moves."""
    calls = cells(few)
    evaluation, formula = Evaluation(calls, given(calls, few)), Formula(few)
    seen, false_alarms = evaluation.false_alarms(bound.bounds)
    lines = Path(bound.__file__).read_text().splitlines()
    rows: list[dict[str, Any]] = []
    number = 0
    while not (few and number == 2):
        for factor in (8.0, 1 / 8):
            made, scale = scaled(number, factor)
            if not scale.line:
                by = {word: sum(row["by"] == word for row in rows) for word in ("mutants", "kernels", "formula", "error", "")}
                return {"calls": len(calls), "answers": len(evaluation.answers), "detections": len(seen),
                        "false_alarms": len(false_alarms), "mutants": len(rows), "killed_by": by, "rows": rows}  # fmt: skip
            row = {"line": lines[scale.line - 1].strip(), "constant": scale.text, "times": factor}
            try:
                wrong, right = evaluation.false_alarms(made["bounds"])
                low, high = formula.moves(made["bounds"])
            except (TypeError, ValueError, RuntimeError, ZeroDivisionError, OverflowError) as reason:
                rows.append({**row, "by": "error", "why": type(reason).__name__})
                continue
            row |= {"lost": len(seen - wrong), "false_alarms": len(right - false_alarms)}
            rows.append({**row, "moves": [round(low, 4), round(high, 4)], **progress(row, low, high)})
        number += 1
    return {"rows": rows}


def progress(row: dict[str, Any], low: float, high: float) -> dict[str, str]:
    """Who notices a changed constant; where only the formula does, why no mutant and no kernel can."""
    if row["lost"]:
        return {"by": "mutants"}
    if row["false_alarms"]:
        return {"by": "kernels"}
    if low > 1.0 - 1e-9 and high < 1.0 + 1e-9:
        return {"by": "", "why": "no bound on any of these calls moves by 1e-9 of itself"}
    if low > 0.8 and high < 1.25:
        return {"by": "formula", "why": "a term of a worst case: it is a small share of every bound here"}
    if high >= 1.25:
        return {"by": "formula", "why": "looser where no mutant lies: mutants exceed these bounds many times over"}
    return {"by": "formula", "why": "tighter where no correct kernel's rounding adds up to the worst case"}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "collect", "constants"))
    parser.add_argument("--mutmut", default="mutmut", help="the mutmut to run")
    parser.add_argument("--tree", type=Path, help="where the copy is (run: where to make it)")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if asked.what == "constants":
        store("constants", constants())
        return 0
    if asked.what == "collect":
        return int(collect(asked.mutmut, asked.tree) > 0)
    with tempfile.TemporaryDirectory() as folder:
        return int(run(asked.mutmut, asked.tree or Path(folder)) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
