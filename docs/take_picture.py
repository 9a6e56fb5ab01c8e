"""Take the picture of a report that README shows.

    python docs/take_picture.py runs/demo-…/report.html docs/images/report.png

Needs the `test` extra and a Chromium (`make browser` installs Debian's).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1280, 760


def take_picture(page_file: Path, out: Path) -> None:
    """First screen of a report, light, as a PNG of `WIDTH` × `HEIGHT` CSS pixels."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light", offline=True
        )
        page.goto(page_file.resolve().as_uri(), wait_until="load")
        page.screenshot(path=str(out))
        browser.close()


if __name__ == "__main__":
    take_picture(Path(sys.argv[1]), Path(sys.argv[2]))
