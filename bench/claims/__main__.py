"""The claims of the sources: list them, or run one.

python bench/claims                   every claim with its stored verdict
python bench/claims NAME [OPTIONS]    what `python bench/claims/NAME.py OPTIONS` does; --help lists its options
"""

from __future__ import annotations

import ast
import json
import runpy
import sys
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "claims"


def scripts() -> dict[str, str]:
    """The commands by name, with their first docstring. A file without a claim has no `TEXT` and no `CLAIM`."""
    found = {}
    for path in sorted(HERE.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        if {"TEXT", "CLAIM"} & {target.id for target in targets if isinstance(target, ast.Name)}:
            found[path.stem] = " ".join((ast.get_docstring(tree) or "").split())
    return found


def listed() -> str:
    parts = []
    for name, text in scripts().items():
        stored = RESULTS / f"{name}.json"
        verdict = json.loads(stored.read_text(encoding="utf-8"))["verdict"] if stored.exists() else "not run"
        parts += [name, fill(text, 110, initial_indent="  ", subsequent_indent="  ")]
        parts.append(fill(verdict, 110, initial_indent="    -> ", subsequent_indent="    "))
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{__doc__}\n{listed()}")
        return 0
    name, known = arguments[0].removesuffix(".py"), scripts()
    if name not in known:
        near = get_close_matches(name, known, 1)
        advice = f"did you mean `{near[0]}`?" if near else "`python bench/claims` lists them"
        print(f"there is no claim `{name}`; {advice}", file=sys.stderr)
        return 2
    sys.argv = [str(HERE / f"{name}.py"), *arguments[1:]]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except ModuleNotFoundError as error:
        print(f"`{error.name}` is not installed, and {name} needs it: `make test` installs it", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
