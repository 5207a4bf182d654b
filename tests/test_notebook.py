"""docs/examples/first-steps.ipynb: every cell runs, and prints what the notebook shows.

`python tests/test_notebook.py` writes what the cells print into the notebook.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "docs" / "examples" / "first-steps.ipynb"


def printed(notebook: dict[str, Any]) -> list[str]:
    """What the code cells print, one after the other in one namespace."""
    names: dict[str, Any] = {}
    outputs = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            with redirect_stdout(io.StringIO()) as text:
                exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
            outputs.append(text.getvalue())
    return outputs


def shown(cell: dict[str, Any]) -> str:
    return "".join(line for output in cell["outputs"] for line in output["text"])


def test_the_cells_print_what_the_notebook_shows() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    assert [shown(cell) for cell in cells] == printed(notebook)


if __name__ == "__main__":
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell, text in zip(code, printed(notebook), strict=True):
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}]
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
