"""HTML pages, made from templates.

Whatever a value says, it is text of the page: Jinja escapes it. The page itself forbids scripts, and it loads nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""The Content-Security-Policy of every page: its own styles, and nothing else."""


def page(template: Path, **values: Any) -> str:
    """The page of a template file. Raises jinja2.UndefinedError for a value that the template needs and that is not given."""
    environment = Environment(
        loader=FileSystemLoader(template.parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template(template.name).render(policy=POLICY, **values)
