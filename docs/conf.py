"""Sphinx builds the site from docs/: `make docs`. Nothing is fetched, neither while building nor while reading."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

project = "tfkit"
copyright = "the authors of tfkit"
release = version("tfkit")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["examples"]
html_theme = "furo"
html_title = f"tfkit {release}"
html_static_path = ["_static"]
html_css_files = ["tfkit.css"]
html_extra_path = ["llms.txt"]
html_copy_source = False
html_show_sourcelink = False

nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures; most belong to packages whose pages are on the network

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
add_module_names = False
python_display_short_literal_types = True


def plain_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with `code` and indented equations. Make that reStructuredText, whatever they hold."""
    if name.startswith("pydantic."):
        lines.clear()
    made: list[str] = []
    for line in lines:
        block = line.startswith("  ") or bool(made and made[-1].startswith("   ") and line.strip() and "   " in line.strip())
        block = block or bool(re.search(r"\S {3,}\S", line))
        if block:
            made.append(f"   {line}" if made and made[-1].startswith("   ") else f"::\n\n   {line}")
        else:
            if made and made[-1].startswith("   ") and line.strip():
                made.append("")
            pieces = re.split(r"(`[^`]*`)", line)
            made.append("".join(f"`{piece}`" if piece.startswith("`") else re.sub(r"([\\*_|])", r"\\\1", piece) for piece in pieces))
    lines[:] = "\n".join(_separated(made)).split("\n") + [""]


def _separated(made: list[str]) -> list[str]:
    """A blank line before every literal block."""
    return [f"\n{line}" if line.startswith("::") and index else line for index, line in enumerate(made)]


def check_offline(app: Sphinx, failed: Exception | None) -> None:
    """No page may load anything from the network, and llms.txt lists every page."""
    if failed or app.builder.name != "html":
        return
    load = re.compile(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["'](?:https?:)?//|<link[^>]*\shref=["'](?:https?:)?//""")
    pages = sorted(Path(app.outdir).rglob("*.html"))
    online = [page.name for page in pages if load.search(page.read_text(encoding="utf-8"))]
    online += [sheet.name for sheet in Path(app.outdir).rglob("*.css") if re.search(r"url\(['\"]?(?:https?:)?//|@import", sheet.read_text())]
    if online:
        raise SphinxError(f"these load something from the network: {', '.join(online)}")
    listed = (Path(app.outdir) / "llms.txt").read_text(encoding="utf-8")
    missing = [name for name in sorted(app.env.found_docs) if name != "index" and f"({name}.html)" not in listed]
    if missing:
        raise SphinxError(f"docs/llms.txt does not list: {', '.join(missing)}")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", plain_docstring)
    app.connect("build-finished", check_offline)
