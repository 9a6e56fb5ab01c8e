"""What axe-core, the common checker of accessibility, says of a page."""

from __future__ import annotations

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page


def violations(page: Page, *, rows: int = 2) -> list[str]:
    """What axe-core objects to. It takes a second per hundred cells, and all rows are alike."""
    page.evaluate(
        """(rows) => {
          document.querySelectorAll("details").forEach((one) => { one.open = true; });
          document.querySelectorAll("tbody").forEach((body) => {
            [...body.rows].slice(rows).forEach((row) => row.remove());
          });
        }""",
        rows,
    )
    page.evaluate(AXE_SCRIPT)
    found = page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
    return [
        f"{one['impact']} {one['id']}: {node['html'][:200]}"
        for one in found
        for node in one["nodes"]
    ]
