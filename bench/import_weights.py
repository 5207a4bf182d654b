"""Import and export of a model of Hugging Face form, against reading its file once; and the peak of memory.

An import writes another file, so reading alone is not its least work. `copy` is: it reads the file once and writes it through
to the disk. `digest` also computes the SHA-256 that the listing of a model holds, in the same loop. Files are in the page
cache. Each part runs in a process of its own, so that its memory is its own. `over_copy` is a ratio of the shortest times."""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from apart import new_processes
from interleaved import report

SPEC = Path(__file__).parent.parent / "specs" / "gpt2.yaml"
BLOCK = 16 << 20


def size_of(layers: int, width: int) -> list[str]:
    return [
        "expect=null",
        f"body.num_layers={layers}",
        f"defaults.d_model={width}",
        f"defaults.ffn.d_ff={4 * width}",
        "defaults.attention.num_heads=4",
    ]


def part(name: str, folder: Path, overrides: list[str], found: Connection) -> None:
    """One part, in this process. Sends its seconds, and the most bytes of memory that the process had."""
    import tfkit
    from tfkit.interop.huggingface import write
    from tfkit.interop.huggingface_import import plan_import, run_import

    catalogue = tfkit.load_catalogue()
    if name == "make":
        (folder / "hf").mkdir()
        write(tfkit.build(tfkit.load_spec(SPEC, catalogue, overrides), catalogue), {}, folder / "hf", shard_bytes=1 << 40)
        found.send((0.0, 0))
        return
    file = folder / "hf" / "model.safetensors"
    model = tfkit.load(folder / "model", catalogue=catalogue) if name == "export" else None
    plan = plan_import(folder / "hf", catalogue) if name == "import" else None
    import torch  # noqa: F401  # not part of the times

    before = time.perf_counter()
    if name in ("read", "copy", "digest"):
        digest = hashlib.sha256()
        with open(file, "rb") as source, open("/dev/null" if name == "read" else folder / "copy", "wb") as target:
            while block := source.read(BLOCK):
                target.write(block)
                if name == "digest":
                    digest.update(block)
            if name != "read":  # as tfkit, which writes through to the disk
                target.flush()
                os.fsync(target.fileno())
    elif plan is not None:
        run_import(plan, folder / "model", catalogue, overwrite=True)
    elif model is not None:
        (folder / "out").mkdir()
        write(model, {}, folder / "out", shard_bytes=1 << 40)
    found.send((time.perf_counter() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the files are written (default: a temporary folder)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)

        def run(which: str) -> tuple[float, int]:
            mine, its = new_processes().Pipe(duplex=False)
            process = new_processes().Process(target=part, args=(which, folder, size_of(options.layers, options.width), its))
            process.start()
            its.close()  # so that a process that fails ends the pipe
            said: tuple[float, int] = mine.recv()
            process.join()
            return said

        run("make")
        names = ("read", "copy", "digest", "import", "export")
        found: dict[str, list[tuple[float, int]]] = {which: [] for which in names}
        for _ in range(options.rounds):
            for which in names:
                found[which].append(run(which))
                shutil.rmtree(folder / "out", ignore_errors=True)
                (folder / "copy").unlink(missing_ok=True)
        size = (folder / "hf" / "model.safetensors").stat().st_size
    memory = {which: max(used for _, used in rounds) / size for which, rounds in found.items()}
    seconds = {which: [each for each, _ in rounds] for which, rounds in found.items()}
    shortest = {which: min(times) for which, times in seconds.items()}
    ratios = {
        f"over_{base}": {which: round(shortest[which] / shortest[base], 2) for which in ("import", "export")}
        for base in ("read", "copy", "digest")
    }
    print(ratios)
    return report("import and export", seconds, "copy", options.json, bytes=size, peak_memory_over_file=memory, **ratios)


if __name__ == "__main__":
    main()
