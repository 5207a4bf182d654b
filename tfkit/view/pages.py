"""HTML pages from templates. Jinja escapes all values. The pages forbid scripts and load nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""The Content-Security-Policy of every page: it allows only inline styles."""


def page(template: Path, **values: Any) -> str:
    """Render a page.

    Args:
        template: the template file.
        values: the values of the template, by name.

    Returns:
        The HTML text.

    Raises:
        jinja2.UndefinedError: a value is missing.
    """
    environment = Environment(
        loader=FileSystemLoader(template.parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template(template.name).render(policy=POLICY, **values)
