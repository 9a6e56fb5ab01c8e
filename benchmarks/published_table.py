"""Question: what does the README say about the projector's accuracy?

    python benchmarks/published_table.py

Prints the table in Markdown, from results/memory_published.json alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "memory_published.json"
METRICS = {
    "temp arena": "size that XLA failed to allocate",
    "compile": "XLA's static account",
    "args": "XLA, weights and optimizer",
    "allocated": "PyTorch, largest allocated",
    "reserved": "PyTorch, largest reserved",
    "device": "device, all of it",
    "moments": "optimizer moments",
    "against base": "device, other pipeline schedules",
}


def markdown(document: dict[str, Any]) -> str:
    """Families with something projected, then metrics, then what was left out."""
    lines = ["| runs | sizes | median error | bias | verdicts |", "|---|---:|---:|---:|---:|"]
    lines += [_line(f["title"], f) for f in document["families"] if f["sizes"] or f["verdicts"]]
    lines.append(_line("**all**", document["overall"]))
    lines += ["", "| measured | sizes | median error | bias |", "|---|---:|---:|---:|"]
    for name, group in document["by_metric"].items():
        lines.append(_line(METRICS[name], group, has_verdicts=False))
    overall, fresh = document["overall"], document["out_of_sample"]
    static = overall["static_median_error"]
    lines += [
        "",
        f"{overall['rows']} published rows, {overall['not_projected']} of which leave out an input "
        "or measure something else; the file says which. "
        f"{overall['verdicts_borderline']} projections are borderline, by the error of their "
        "account, and count as right. Families that no count was chosen by: "
        f"{_percent(fresh['median_error'])} median error over {fresh['sizes']} sizes, "
        f"{fresh['verdicts_right']} of {fresh['verdicts']} verdicts. What stays between steps "
        f"(weights, gradients, optimizer), where published: {_percent(static)} median error over "
        f"{overall['static_sizes']} sizes.",
    ]
    return "\n".join(lines)


def _line(title: str, group: dict[str, Any], *, has_verdicts: bool = True) -> str:
    cells = [title, str(group["sizes"] or "–"), _percent(group["median_error"])]
    cells.append("–" if group["bias"] is None else f"{group['bias']:+.1%}")
    if has_verdicts:
        verdicts = group["verdicts"]
        cells.append(f"{group['verdicts_right']} of {verdicts}" if verdicts else "–")
    return f"| {' | '.join(cells)} |"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


if __name__ == "__main__":
    print(markdown(json.loads(RESULT.read_text(encoding="utf-8"))))
