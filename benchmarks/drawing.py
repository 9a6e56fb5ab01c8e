"""Question: how long do a Perfetto trace and a page of 1.6 M pieces of work take to make?

    python benchmarks/drawing.py [--case perfetto …] [--rounds 3]

Each is a whole process, started cold (imports and reading included); its memory is the peak
resident set that the system reports. ``perfetto`` has 8 devices and 10 steps of 20,000 kernels
each, with their launches, and becomes 6.4 M slices; ``perfetto, packet by packet`` is the slow
twin of the native writer on the same profile, in turn within each round. ``report`` is the page of
the 1.6 M events of ``one_long_step`` in report_page.py, which times browsers too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from ingest import RESULTS, big_xspace, run_once
from machine import machine

_SLOW = """
import sys
from moeprof.cli.main import main
from moeprof.reports.perfetto import file
file.native_is_due = lambda: False
sys.argv[0] = "moeprof"
main()
"""
PROFILES = {
    "10 steps of 20,000 kernels": {"devices": 8, "steps": 10, "kernels": 20_000},
    "4 steps of 25,000 kernels": {"devices": 8, "steps": 4, "kernels": 25_000},
}
_EXPORT = ("export", "--perfetto", "{out}.pftrace", "{file}")
CASES: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "perfetto": (
        "10 steps of 20,000 kernels",
        {
            "perfetto": ("-m", "moeprof", *_EXPORT),
            "perfetto, packet by packet": ("-c", _SLOW, *_EXPORT),
        },
    ),
    "report": (
        "4 steps of 25,000 kernels",
        {"report": ("-m", "moeprof", "report", "{file}", "-o", "{out}.html")},
    ),
}


def measure(case: str, rounds: int, folder: Path) -> list[dict[str, object]]:
    """Medians of each contestant of a case; all must write the same bytes."""
    profile, contestants = CASES[case]
    file, out = folder / f"{case}.xplane.pb", folder / "made" / case
    out.parent.mkdir()
    with ProcessPoolExecutor(1) as pool:  # a child's peak memory is at least that of its parent
        pool.submit(_make, profile, file).result()
    figures: dict[str, list[tuple[int, int, int]]] = {name: [] for name in contestants}
    written: set[bytes] = set()
    for _ in range(rounds):
        for name, arguments in contestants.items():
            filled = [a.replace("{file}", str(file)).replace("{out}", str(out)) for a in arguments]
            figures[name].append(run_once([sys.executable, *filled]))
            [made] = out.parent.iterdir()
            written.add(made.read_bytes())
            size = made.stat().st_size
            made.unlink()
    if len(written) != 1:
        raise RuntimeError(f"{case}: {len(written)} different files were written")
    return [
        {
            "case": name,
            "profile": profile,
            "profile_bytes": file.stat().st_size,
            "written_bytes": size,
            "rounds": rounds,
            **{
                key: int(statistics.median(column))
                for key, column in zip(
                    ("wall_ns", "cpu_ns", "peak_rss_bytes"), zip(*rows, strict=True), strict=True
                )
            },
            "cpu_each_ns": [cpu for _, cpu, _ in rows],
        }
        for name, rows in figures.items()
    ]


def _make(profile: str, file: Path) -> None:
    file.write_bytes(big_xspace.gpu_profile(**PROFILES[profile]))


def main() -> None:
    """Measure every case, print what was found, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "drawing.json")
    options = parser.parse_args()
    about = machine("perfetto", "protobuf", "plotly", "pandas", "numpy")
    found: list[dict[str, object]] = []
    for case in options.case or CASES:
        with tempfile.TemporaryDirectory() as folder:
            found += measure(case, options.rounds, Path(folder))
    document = {"schema": "moeprof.bench/1", "machine": about, "measurements": found}
    print(json.dumps(document, indent=1))
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
