"""Pages in headless Chromium without a network, and what is missing for that."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("playwright", "axe_playwright_python")


def _program() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def missing_browser() -> str:
    """What tests in a browser lack here; empty if nothing."""
    missing = [name for name in PACKAGES if find_spec(name) is None] + ([] if _program() else ["chromium"])
    return f"which need {' and '.join(missing)}" if missing else ""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=_program(), args=options)
        yield browser
        browser.close()


@contextmanager
def opened(path: Path, width: int = 1280, scheme: str = "light") -> Iterator[Any]:
    """A page of Playwright that shows a file. At its end, no other request was made, and nothing was written to the console."""
    noticed: list[str] = []
    with chromium() as browser:
        context = browser.new_context(offline=True, viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.on("request", lambda request: noticed.append(request.url))
        page.on("console", lambda message: noticed.append(message.text))
        page.on("pageerror", lambda error: noticed.append(str(error)))
        page.goto(path.as_uri())
        yield page
    assert set(noticed) == {path.as_uri()}


def violations(page: Any) -> list[tuple[str, str]]:
    """What axe-core finds in a page: rules with the elements that break them."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [(rule["id"], node["html"]) for rule in found for node in rule["nodes"]]
