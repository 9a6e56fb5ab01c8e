"""Writes the table of docs/hosts.md from the result of benchmarks/hosts.py:

python docs/write_hosts.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "hosts.md"
RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "hosts.json"
_TABLE = re.compile(r"(<!-- hosts.json -->\n).*?(<!-- end -->)", re.DOTALL)
_SHOWN = {"at once": "--at-once", "by host": "--workers 0", "2 workers": "--workers 2"}


def written(page: str) -> str:
    """The page with its table as the result has it."""
    return _TABLE.sub(lambda found: f"{found[1]}{_table()}\n{found[2]}", page)


def _table() -> str:
    measured = json.loads(RESULT.read_text("utf-8"))["measurements"]
    rows = {(row["hosts"], row["contestant"]): row for row in measured}
    lines = [
        "| hosts | " + " | ".join(f"`{option}`" for option in _SHOWN.values()) + " |",
        "|---|" + "---|" * len(_SHOWN),
    ]
    for hosts in sorted({hosts for hosts, _ in rows}):
        cells = " | ".join(_cell(rows.get((hosts, name))) for name in _SHOWN)
        lines.append(f"| {hosts:,} | {cells} |")
    return "\n".join(lines)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    return f"{row['wall_ns'] / 1e9:.1f} s, {row['peak_pss_bytes'] / 1e6:,.0f} MB"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
