"""`tfkit machine-code`: defects in the machine code of GPU kernels."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click

from tfkit.commands import READ, Progress, print_json, print_rich, shown, traceback_option

from . import seconds

EPILOG = """\b
Each kernel is disassembled and checked. Nothing is run, and no GPU is needed.
- reads before writes: a register is read on a path on which nothing wrote it
- serialised products: one waits for another whose sum nothing reads
- local memory: spilled registers, or arrays with computed indices
- shared memory: a known address beyond what the kernel may have

\b
nvdisasm is looked for in NVDISASM, PATH, Triton's wheel and CUDA_HOME. In a
directory all *.cubin are checked, below it too; no link is followed.

\b
--json prints an object with `files`, `kernels`, `nvdisasm` and `findings`
(`file`, `kernel`, `check`, `address`, `instruction`, `what`, `source`).
Exit code 0 without findings, 1 with findings, 2 for a wrong input.
"""
SHOWN = 3
"""Findings of one check that the text shows for a kernel."""


@click.command("machine-code", epilog=EPILOG, short_help="defects in the machine code of GPU kernels")
@click.argument("place", type=READ, metavar="FILE.cubin|DIR", help="A cubin, or a directory such as ~/.triton/cache.")
@click.option("--timeout", type=seconds, default=120.0, metavar="SECONDS", help="Time of the disassembler for one file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@traceback_option
def command(place: str, timeout: float, as_json: bool) -> int:
    """Find reads before writes and other defects in the machine code of GPU kernels."""
    from rich.text import Text

    from ..machine_code.check import CHECKS, check_cubin
    from ..machine_code.cubin import cubins_of, find_nvdisasm, read_cubin

    files = cubins_of(place)
    if len(files) == 1:
        read_cubin(files[0])  # what is wrong with a file is said first
    nvdisasm = find_nvdisasm()
    findings_by_file, kernels = [], 0
    with Progress("machine-code") as progress:
        for number, file in enumerate(files, 1):
            progress.show(f"{number} of {len(files)}: {file.name}")
            for findings in check_cubin(file, nvdisasm, timeout).values():
                kernels += 1
                findings_by_file += [(file, finding) for finding in findings]
    if as_json:
        rows = [{"file": str(file), **asdict(finding)} for file, finding in findings_by_file]
        print_json({"files": len(files), "kernels": kernels, "nvdisasm": str(nvdisasm), "findings": rows})
        return 1 if findings_by_file else 0
    counts = Counter((file, finding.kernel, finding.check) for file, finding in findings_by_file)
    shown_of: Counter[tuple[Path, str, str]] = Counter()
    for file, finding in findings_by_file:
        key = (file, finding.kernel, finding.check)
        if not shown_of[key]:
            print_rich(Text(shown(f"{file}, kernel {finding.kernel}: {finding.check} ({counts[key]})"), "bold red"))
        shown_of[key] += 1
        if shown_of[key] <= SHOWN:
            at = f"; {finding.source}" if finding.source else ""
            print_rich(Text(shown(f"  {finding.address:#06x}  {finding.instruction}: {finding.what}{at}")))
    totals = ", ".join(f"{check}: {sum(finding.check == check for _, finding in findings_by_file)}" for check in CHECKS)
    noun = "kernel" if kernels == 1 else "kernels"
    print_rich(
        Text(
            f"{kernels} {noun} in {len(files)} {'file' if len(files) == 1 else 'files'}; {totals}",
            "bold red" if findings_by_file else "bold green",
        )
    )
    return 1 if findings_by_file else 0
