"""Self-contained HTML pages from templates that extend `layout.html`. Jinja escapes all values. The pages load nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""The Content-Security-Policy of every page: it allows inline styles and inline images. A page with a script also allows that
one script, by its hash."""


def page(template: Path, script: str = "", data: Any = None, **values: Any) -> str:
    """Render a page.

    Args:
        template: the template file. It extends `layout.html`, which needs the value `title`.
        script: the script of the page. The text of a value never becomes part of it.
        data: what the script reads, as JSON, from the element with the id `data`. None: the page has no such element.
        values: the values of the template, by name.

    Returns:
        The HTML text.

    Raises:
        jinja2.UndefinedError: a value is missing.
    """
    inert = None if data is None else _inert_json(data)
    return rendered(template, policy=_policy(script), script=Markup(script), data=inert, **values)


def rendered(template: Path, **values: Any) -> str:
    """The HTML text of a template. It may use those of this folder."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template(template.name).render(**values)


def framed(page: str, title: str) -> str:
    """A page for a notebook: in a frame of its own, so that its styles and its script touch nothing else."""
    style, source = "width:100%;height:48rem;border:0", html.escape(page, quote=True)
    return f'<iframe title="{html.escape(title)}" sandbox="allow-scripts" style="{style}" srcdoc="{source}"></iframe>'


def _policy(script: str) -> str:
    if not script:
        return POLICY
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{POLICY}; script-src 'sha256-{digest}'"


def _inert_json(data: Any) -> Markup:
    """JSON that cannot end the element it is in: `<` only occurs in strings, where its escape means the same."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def search_html(title: str, rows: Iterable[tuple[str, Sequence[str], Any]]) -> str:
    """A table of hypotheses: the text, the tokens and the `Hypothesis` of each row, under what the model read."""
    table_rows = [
        (text, hypothesis, list(zip(tokens, hypothesis.token_log_probabilities.exp().tolist(), strict=True)))
        for text, tokens, hypothesis in rows
    ]
    return rendered(Path(__file__).with_name("search.html"), title=title, rows=table_rows)


def hypothesis_html(hypothesis: Any) -> str:
    """A table of one hypothesis. Its tokens are numbers."""
    ids = [str(number) for number in hypothesis.ids.tolist()]
    return search_html("", [(" ".join(ids), ids, hypothesis)])
