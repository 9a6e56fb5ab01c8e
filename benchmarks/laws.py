"""Question: which share of the time of `moeprof analyze` do the laws of the trust record take?

    python benchmarks/laws.py [--rounds 5] [--before OTHER/.venv/bin/python]

On two made profiles of 600,000 events. Each round is a process of its own that reads the profile,
asks every question and writes the document; the processor time of each law, and of each part of
reading that only laws need, is taken within it. Laws of the answer come last, as in the command:
what questions share with them is the questions' own. With ``--before``, the Python of another
checkout, the whole command is measured too, of both in turn within each round.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingest import CASES, run_once
from machine import machine

RESULTS = Path(__file__).parent / "results"
PROFILES = ("kernels_600k", "mixed_600k")
READING = {
    "host_file": ("read_calls", "host_calls", "executed", "device_ids", "with_causal_stamps"),
    "placing.host_tables": ("lost_launches", "silent_devices", "endless_pieces"),
}
"""Parts of reading that exist for laws, by the module of `moeprof.ingest` that calls them."""


def once(file: Path) -> dict[str, int]:
    """Nanoseconds of processor time of the whole, and of each law and part of reading."""
    import importlib

    from moeprof.analyzers import laws
    from moeprof.cli.findings import read_document
    from moeprof.ingest import trust
    from moeprof.reports.run.document import to_json

    spent: dict[str, int] = defaultdict(int)

    def timed(kind: str, name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def measured(*arguments: Any, **named: Any) -> Any:
            before = time.process_time_ns()
            try:
                return own(*arguments, **named)
            finally:
                spent[f"{kind}: {name}"] += time.process_time_ns() - before

        return measured

    for place, names in READING.items():
        module = importlib.import_module(f"moeprof.ingest.{place}")
        for name in names:
            setattr(module, name, timed("reading", name, getattr(module, name)))
    for registry, kind, of in ((trust, "input", "CHECKS"), (laws, "answer", "LAWS")):
        wrapped = tuple(timed(kind, law.__name__, law) for law in getattr(registry, of))
        setattr(registry, of, wrapped)
    to_json(read_document(file, (), None, (), "", is_drawn=True))
    spent["all of it"] = time.process_time_ns()  # imports too, as of the command
    return dict(spent)


def measure(file: Path, rounds: int) -> dict[str, Any]:
    """Medians of `once` over processes of their own, and the share of laws and their reading."""
    runs = [
        json.loads(subprocess.check_output([sys.executable, __file__, "--once", str(file)]))
        for _ in range(rounds)
    ]
    parts = {name: int(statistics.median(run[name] for run in runs)) for name in runs[0]}
    whole = parts.pop("all of it")
    sums = {
        kind: sum(ns for name, ns in parts.items() if name.startswith(kind))
        for kind in ("reading", "input", "answer")
    }
    shares = {f"{kind}_share": round(ns / whole, 4) for kind, ns in sums.items()}
    laws_share = round(sum(sums.values()) / whole, 4)
    return {"analyze_cpu_ns": whole, **shares, "laws_share": laws_share, "cpu_ns": parts}


def compared(file: Path, pythons: dict[str, str], rounds: int) -> dict[str, dict[str, int]]:
    """Medians of wall and processor time and of peak memory of the command, by checkout."""
    command = ("-m", "moeprof", "analyze", "--json", str(file))
    found: dict[str, list[tuple[int, int, int]]] = {name: [] for name in pythons}
    for turn in range(rounds):
        for name in list(pythons)[:: 1 if turn % 2 else -1]:
            found[name].append(run_once([pythons[name], *command]))
    units = ("wall_ns", "cpu_ns", "peak_rss_bytes")
    return {
        name: {
            unit: int(statistics.median(column))
            for unit, column in zip(units, zip(*rows, strict=True), strict=True)
        }
        for name, rows in found.items()
    }


def main() -> None:
    """Measure, print a table, and write the figures to benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", help="the Python of a checkout to compare with")
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS / "laws.json")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(options.once)))
        return
    document: dict[str, Any] = {
        "schema": "moeprof.bench/1",
        "machine": machine("pandas", "numpy", "pyarrow"),
        "rounds": options.rounds,
        "profiles": {},
    }
    for name in PROFILES:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{name}.xplane.pb"
            file.write_bytes(CASES[name].make())
            found = measure(file, options.rounds)
            if options.before:
                pythons = {"before": options.before, "now": sys.executable}
                found["commands"] = compared(file, pythons, options.rounds)
        document["profiles"][name] = found
        print(f"{name}: analyze {found['analyze_cpu_ns'] / 1e6:,.0f} ms of processor time")
        for part, ns in sorted(found["cpu_ns"].items(), key=lambda pair: -pair[1]):
            print(f"  {part:<32}{ns / 1e6:8.1f} ms")
        print(f"  all of them {found['laws_share']:.1%}; {found.get('commands', '')}")
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
