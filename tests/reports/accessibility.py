"""What axe-core, the common checker of accessibility, says of a page."""

from __future__ import annotations

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page


def violations(page: Page, *, rows: int = 2) -> list[str]:
    """What axe-core objects to.

    It takes a second per hundred cells: of rows, and of a figure's marks of one kind, which are all
    alike, the first few stay.
    """
    page.evaluate(
        """(rows) => {
          document.querySelectorAll("details").forEach((one) => { one.open = true; });
          document.querySelectorAll("tbody").forEach((body) => {
            [...body.rows].slice(rows).forEach((row) => row.remove());
          });
          const kind = (one) => `${one.tagName} ${one.getAttribute("class")}`;
          document.querySelectorAll("svg g").forEach((group) => {
            const marks = [...group.children];
            if (marks.length > 4 && marks.every((mark) => kind(mark) === kind(marks[0])))
              marks.slice(2).forEach((mark) => mark.remove());
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
