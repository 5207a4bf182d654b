"""The tables of `auto` for an H100, from the times of `bench/results/h100/attention.json`.

    python bench/auto_h100.py

It writes `tfkit/builtin/attention/auto_h100.json`, also for `fused`, which need not be installed: `tfkit plan` says what it
would gain. `fused` has a row only where it takes at most 0.9 of the
time of `sdpa`: a smaller gain is not worth another backend. Lengths between two measured ones a and b change at sqrt(a b).
What was not measured is marked as estimated: float16 follows bfloat16, and calls with a bias or a window follow those without
padding and dropout. Dropout takes as many times as long there as in plain calls.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CELLS = ROOT / "bench/results/h100/attention.json"
TABLE = ROOT / "tfkit/builtin/attention/auto_h100.json"
WORTH = 0.9
TIE = 0.9
"""The relative time of `sdpa` where `eager` was not measured, because its scores do not fit into the memory."""


@dataclass(frozen=True)
class Kind:
    """Cells that share their conditions, with the lengths that they stand for.

    Args:
        cells: of `bench/results/h100/attention.json`, without the pass: the one whose times count, by its lengths.
        conditions: of the rows.
        passes: of the cells.
    """

    cells: dict[tuple[int, int | None], str]
    conditions: dict[str, Any]
    passes: tuple[str, ...] = ("forward", "training")


PLAIN = {"masked": False, "biased": False, "decoding": False}
WINDOW = {"masked": True, "windowed": True, "biased": False, "decoding": False}
BIASED = {"biased": True, "windowed": False, "decoding": False}
PADDED = {"masked": True, "windowed": False, "biased": False, "decoding": False}
MEDIUM, LONG = (256, 1023), (1024, None)
HEADS = {64: [1, 90], 128: [91, 256]}
KINDS = (
    *(
        Kind({MEDIUM: f"{name}-d{dim}-512", LONG: f"{name}-d{dim}-2048"}, {**PLAIN, "causal": causal, "head_dims": HEADS[dim]})
        for dim in HEADS
        for name, causal in (("dense", False), ("causal", True))
    ),
    Kind({MEDIUM: "dropout-512", LONG: "dropout-2048"}, {**PLAIN, "dropout": True}, ("training",)),
    Kind({(1, 55): "multi30k-decoder", (56, 220): "wmt-decoder"}, {**PADDED, "causal": True}),
    Kind({(1, 55): "multi30k-encoder", (56, 220): "wmt-encoder"}, {**PADDED, "causal": False}),
    Kind({(2048, 8191): "window-4096", (8192, None): "window-16384"}, WINDOW),
    Kind({MEDIUM: "t5-512", LONG: "t5-2048"}, {**BIASED, "biases": ["distance"]}),
    Kind({MEDIUM: "alibi-512", LONG: "alibi-2048"}, {**BIASED, "biases": ["linear"]}),
    Kind(
        {(2, 2047): "decode-1024", (2048, 8191): "decode-4096", (8192, 32767): "decode-16384", (32768, None): "decode-65536"},
        {"masked": False, "biased": False, "decoding": True},
        ("forward",),
    ),
)  # fmt: skip


def rows(times: dict[str, dict[str, Any]], backend: str) -> list[dict[str, Any]]:
    found = []
    plain, dropout = times["dense-d64-2048/training"], times["dropout-2048/training"]
    factor = dropout[backend] / plain[backend] * plain["eager"] / dropout["eager"]
    for kind in KINDS:
        for lengths, name in kind.cells.items():
            for one in kind.passes:
                cell = times[f"{name}/{one}"]
                if backend == "fused" and cell["fused"] > WORTH * cell["sdpa"]:
                    continue
                row = {"lengths": list(lengths), "gradients": one == "training", "dropout": False, **kind.conditions}
                row["relative_time"] = round(cell[backend] / cell.get("eager", cell["sdpa"] / TIE), 3)
                notes = [] if "eager" in cell else [f"relative to {TIE} for sdpa: eager was not measured"]
                found += _follow(row, notes)
                if one == "training" and (row.get("biased") or row.get("windowed")):
                    dropped = {**row, "dropout": True, "relative_time": round(row["relative_time"] * factor, 3)}
                    found += _follow(dropped, [*notes, f"{factor:.2f} x that without dropout"])
    return found


def _follow(row: dict[str, Any], notes: list[str]) -> list[dict[str, Any]]:
    """The row for bfloat16, and those that follow it."""
    masked = [(False, []), (True, ["as without padding"])] if "masked" not in row else [(row["masked"], [])]
    made = []
    for dtype, more in (("bfloat16", []), ("float16", ["as bfloat16"])):
        for value, padded in masked:
            estimated = "; ".join([*notes, *more, *padded])
            made.append({"dtypes": [dtype], **row, "masked": value, **({"estimated": estimated} if estimated else {})})
    return made


def main(file: Path = TABLE) -> None:
    first, *cells = json.loads(CELLS.read_text(encoding="utf-8"))
    times = {cell["cell"]: cell for cell in cells}
    head = {
        "tfkit_auto": 1, "device": "cuda", "device_name": first["device"], "capability": [9, 0],
        "versions": {"torch": first["torch"]}, "command": "python bench/auto_h100.py",
    }  # fmt: skip
    blocks = []
    for backend in ("sdpa", "fused"):
        lines = ",\n".join(f"   {json.dumps(row, allow_nan=False)}" for row in rows(times, backend))
        blocks.append(f'  "{backend}": [\n{lines}\n  ]')
    text = json.dumps({**head, "rows": {}}, indent=1, allow_nan=False).removesuffix("{}\n}")
    file.write_text(text + "{\n" + ",\n".join(blocks) + "\n }\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
