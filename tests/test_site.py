"""The documentation as a site, which `make docs` builds: no page of it is wider than the window."""

from pathlib import Path

import pytest

from browser import chromium, missing_browser

SITE = Path(__file__).parents[1] / "build" / "docs"
MISSING = missing_browser() or ("" if (SITE / "index.html").exists() else "which needs the site: make docs")
WIDTHS = (390, 1280, 1366, 1600)


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"not run: a page in a browser, {MISSING}")
def test_no_page_is_wider_than_the_window():
    too_wide = []
    with chromium() as browser:
        page = browser.new_context(offline=True).new_page()
        for path in sorted(SITE.rglob("*.html")):
            page.goto(path.as_uri())
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
                    too_wide.append(f"{path.relative_to(SITE)}: {wide} px at {width}")
    assert too_wide == []
