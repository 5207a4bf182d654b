"""Sphinx builds the site from docs/: `make docs`. Nothing is fetched, neither while building nor while reading."""

from __future__ import annotations

import inspect
import json
import re
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.search.en import SearchEnglish

import tfkit

project = "tfkit"
copyright = "the authors of tfkit"
release = metadata.version("tfkit-core")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["examples"]
smartquotes = False  # `--json` stays as it is
html_theme = "furo"
html_title = f"tfkit {release}"
html_static_path = ["_static"]
html_css_files = ["tfkit.css"]
html_extra_path = ["llms.txt"]
copybutton_prompt_text = "$ "  # what is copied of a console block: its commands, without the prompt and without their outputs
copybutton_copy_empty_lines = False  # where outputs were
copybutton_line_continuation_character = "\\"
copybutton_exclude = ".linenos"
html_copy_source = False
html_show_sourcelink = False

nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures; most belong to packages whose pages are on the network

napoleon_use_ivar = True  # no second description of a field
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
add_module_names = False
python_display_short_literal_types = True


ENTRY = re.compile(r"^( +)(\*{0,2}\w+): (.*(?:\n\1 +.*)*)", re.MULTILINE)
"""An argument in a docstring with its description."""


def described(name: str, text: str) -> str:
    """The description of an argument. Where it says `As in` another function, it begins with the description there."""
    reference = re.match(r"As in `(?:tfkit\.)?([\w.]+)`\W*", text)
    if not reference or reference[1].startswith("nn."):
        return text
    there = {entry[2]: entry[3] for entry in ENTRY.finditer(inspect.getdoc(attrgetter(reference[1])(tfkit)) or "")}
    rest = text[reference.end() :]
    return " ".join(filter(None, [described(name, there[name]), rest[:1].upper() + rest[1:]]))


def plain_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with `code`, equations and the sections that napoleon reads next. Make that reStructuredText,
    whatever characters they hold. What an argument means stands on the page, not only where else it is described."""
    made = []
    text = ENTRY.sub(lambda entry: f"{entry[1]}{entry[2]}: {described(entry[2], entry[3])}", "\n".join(lines).strip())
    for paragraph in re.split(r"\n\s*\n", text):
        section = re.match(r"(Args|Attributes|Raises|Returns|Yields|Methods|Example|Examples|Note):\n", paragraph)
        if not section and re.search(r"^ |\S {3,}\S", paragraph, re.MULTILINE):  # indented, or in columns
            made.append("::\n\n" + re.sub(r"^", "   ", paragraph, flags=re.MULTILINE))
        else:
            pieces = re.split(r"(`[^`]*`)", paragraph)
            made.append("".join(f"`{each}`" if each[:1] == "`" else re.sub(r"([\\*_|])", r"\\\1", each) for each in pieces))
    lines[:] = ["", *"\n\n".join(made).split("\n"), ""]


LOADED = {
    "*.html": r"""<(?:script|img|iframe|source)[^>]*\ssrc=["'](?:https?:)?//|<link[^>]*\shref=["'](?:https?:)?//""",
    "*.css": r"""url\(['"]?(?:https?:)?//|@import""",
}


def check_site(app: Sphinx, failed: Exception | None) -> None:
    """No page loads anything from the network, and llms.txt lists every page."""
    if failed or app.builder.name != "html":
        return
    site = Path(app.outdir)
    for pattern, loads in LOADED.items():
        online = [str(path.relative_to(site)) for path in site.rglob(pattern) if re.search(loads, path.read_text("utf-8"))]
        if online:
            raise SphinxError(f"these load something from the network: {', '.join(online)}")
    listed = (site / "llms.txt").read_text("utf-8")
    check_search(site)
    missing = [name for name in sorted(app.env.found_docs) if name != "index" and f"({name}.html)" not in listed]
    if missing:
        raise SphinxError(f"docs/llms.txt does not list: {', '.join(missing)}")


SEARCHED = {
    "multi gpu": "faq", "quantization": "guides/decoding", "early stopping": "guides/training",
    "learning rate": "guides/training", "fairseq": "guides/migrating", "beam search": "guides/decoding",
}  # fmt: skip
"""What readers search for, and a page that the search must find: it holds every word."""


def check_search(site: Path) -> None:
    text = (site / "searchindex.js").read_text("utf-8")
    index = json.loads(text[text.index("{") : text.rindex("}") + 1])
    stem = SearchEnglish({}).stem
    for words, page in SEARCHED.items():
        pages = [set[int]() for _ in words.split()]
        for held, word in zip(pages, words.split(), strict=True):
            for table in (index["terms"], index["titleterms"]):
                entry = table.get(stem(word), [])
                held |= {entry} if isinstance(entry, int) else set(entry)
        if index["docnames"].index(page) not in set.intersection(*pages):
            raise SphinxError(f"a search for `{words}` does not find {page}")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", plain_docstring, priority=400)  # before napoleon
    app.connect("build-finished", check_site)
