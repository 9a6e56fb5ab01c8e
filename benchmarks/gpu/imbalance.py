"""Question: what does uneven routing cost a step on GPUs? (`expert_load`, on the captures kept)

    python benchmarks/gpu/imbalance.py [--captures FOLDER] [--out FILE.json]

Reads each run in FOLDER (tests/data/gpu by default) as `moeprof analyze --only expert_load` does;
needs no GPU. The tax is that analyzer's: at least how much longer the grouped products take on the
slowest rank than on the mean one, at most what equal loads would save if every layer waited for its
fullest rank. It is not known where products are of a fixed size, as with capacity, nor where the
run's steps are not those of its routing; the analyzer's own words say which.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
CAPTURES = ROOT / "tests" / "data" / "gpu"


def analysis(run: Path) -> dict[str, Any]:
    """What `moeprof analyze` says of a run's expert load."""
    command = [sys.executable, "-m", "moeprof", "analyze", str(run), "--only", "expert_load"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"{run}: {done.stderr.strip().splitlines()[-1]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def row_of(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """One capture's row: imbalances of the worst layer, and bounds of the tax in µs."""
    found = document["analyses"]["expert_load"]
    headline = {metric["metric"]: metric["value"] for metric in found["headline"]}
    used_ns = [step["duration_ns"] for step in document["steps"] if step["used"]]
    row = {
        "strategy": name,
        "step_us": sum(used_ns) / len(used_ns) / 1e3,
        "expert_imbalance": headline["worst_expert_imbalance"],
        "rank_imbalance": headline["worst_rank_imbalance"],
    }
    if headline["tax_most"] is None:
        why = [note for note in found["notes"] if note.startswith("the tax is not known")]
        return {**row, "not_known": why[0] if why else "the tax is not known"}
    return {
        **row,
        "tax_least_us": headline["tax_least"] / 1e3,
        "tax_most_us": headline["tax_most"] / 1e3,
    }


def main() -> None:
    """Analyse every capture, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captures", type=Path, default=CAPTURES)
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu_imbalance.json")
    options = parser.parse_args()
    runs = sorted(file.parent for file in options.captures.glob("*/answers.json"))
    if not runs:
        sys.exit(f"{options.captures}: expected captured runs (*/answers.json), found none.")
    answers = json.loads((runs[0] / "answers.json").read_text())
    keys = ("model", "plan", "sequence", "pdbs", "devices", "jax")
    rows = [row_of(run.name, analysis(run)) for run in runs]
    for row in rows:
        print(line(row))
    document = {**{key: answers[key] for key in keys}, "rows": rows}
    options.out.write_text(json.dumps(document, indent=1) + "\n")


def line(row: dict[str, Any]) -> str:
    """One row of the table, 80 columns."""
    head = f"{row['strategy']:<24} rank {row['rank_imbalance']:4.2f} × mean  "
    if "not_known" in row:
        return f"{head}tax not known:\n  {row['not_known'].removeprefix('the tax is not known: ')}"
    return (
        f"{head}tax {row['tax_least_us']:.0f} to {row['tax_most_us']:.0f} of "
        f"{row['step_us']:,.0f} µs"
    )


if __name__ == "__main__":
    main()
