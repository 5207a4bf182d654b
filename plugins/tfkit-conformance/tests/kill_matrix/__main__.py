"""Print which check kills each mutant, and whether a correct kernel raises an alarm.

    python plugins/tfkit-conformance/tests/kill_matrix [--profile quick|standard|deep] [--seed N] [--seeds N]
        [--family NAME ...] [--json FILE]

Exit code 0 when every mutant is killed and no correct kernel raises an alarm, otherwise 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a directory that is run is not a package yet

from kill_matrix.evaluation import run_kill_matrix
from kill_matrix.text import kill_matrix_text
from tfkit.commands import print_rich
from tfkit.files import write_whole
from tfkit_conformance.profile import PROFILES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="standard")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (default 3)")
    parser.add_argument("--family", nargs="*", metavar="NAME", help="only mutants of these families, without correct kernels")
    parser.add_argument("--json", metavar="FILE", help="also write the report as JSON")
    options = parser.parse_args()
    seeds = tuple(range(options.seed, options.seed + options.seeds))
    report = run_kill_matrix(
        profile=options.profile, seeds=seeds, families=options.family,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    data = report.as_data()
    if options.json:
        write_whole(options.json, json.dumps(data, indent=2) + "\n")
    print_rich(*kill_matrix_text(data))
    return int(report.exit_code)


if __name__ == "__main__":
    sys.exit(main())
