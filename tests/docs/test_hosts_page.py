"""The table of docs/hosts.md has the figures of the benchmark."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTESTANTS = {"at once": "--at-once", "by host": "--workers 0", "2 workers": "--workers 2"}


def table() -> str:
    document = json.loads((ROOT / "benchmarks" / "results" / "hosts.json").read_text("utf-8"))
    rows = {(row["hosts"], row["contestant"]): row for row in document["measurements"]}
    lines = [
        "| hosts | " + " | ".join(f"`{option}`" for option in CONTESTANTS.values()) + " |",
        "|---|" + "---|" * len(CONTESTANTS),
    ]
    for hosts in sorted({hosts for hosts, _ in rows}):
        cells = [_cell(rows.get((hosts, name))) for name in CONTESTANTS]
        lines.append(f"| {hosts:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: dict | None) -> str:
    if row is None:
        return "–"
    return f"{row['wall_ns'] / 1e9:.1f} s, {row['peak_pss_bytes'] / 1e6:,.0f} MB"


def test_the_table_is_that_of_the_benchmark():
    page = (ROOT / "docs" / "hosts.md").read_text("utf-8")
    assert page.partition("<!-- hosts.json -->\n")[2].partition("\n<!-- end -->")[0] == table()


def test_answers_were_equal_whoever_read():
    document = json.loads((ROOT / "benchmarks" / "results" / "hosts.json").read_text("utf-8"))
    assert document["are_equal"]
