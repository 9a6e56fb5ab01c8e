"""Question: how fast are XSpace files decoded, beside a bare walk and beside other readers?

    python benchmarks/ingest_decode.py [--size 20 --size 200] [--rounds 5]

The files are those of `synthetic_xspace`, ``cpu`` and ``gpu`` shaped. Contestants:

- ``walk``: moeprof's first pass, which steps from event to event and decodes none: the floor.
- ``moeprof_1``, ``moeprof_all``: every event with eight number and two text columns, on one thread
  and on all cores.
- ``profile_data``: `jax.profiler.ProfileData`, names and stamps; ``profile_data_stats``: stats
  too.
- ``xprof``: the overview page of xprof, its smallest analysis. Only where xprof is installed whole.

Each runs in a process of its own, so that peak memory is its own; the last three not on files
above 200 MB, of which they need many gigabytes. Figures are medians over the rounds, wall and CPU
time: where other work shares the machine, the CPU time says what the reader needs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from machine import machine
from synthetic_xspace import write

if TYPE_CHECKING:
    from jax.profiler import ProfileEvent

RESULTS = Path(__file__).parent / "results"
NUMBERS = ("program_id", "run_id", "device_ordinal", "step_num", "_pt", "_p", "_ct", "_c")
TEXTS = ("hlo_op", "name")
LARGEST_OF_OTHERS_MB = 200


def moeprof(file: Path) -> int:
    """Decode every event; return their number."""
    from moeprof.ingest.xspace.open_space import open_space

    space = open_space(file)
    events = sum(
        len(space.events(plane, numbers=NUMBERS, texts=TEXTS)) for plane in space.head.planes
    )
    space.close()
    return events


def walk(file: Path) -> int:
    """Count the events."""
    from moeprof.ingest.xspace.open_space import open_space

    space = open_space(file)
    events = sum(line.events for plane in space.head.planes for line in plane.lines)
    space.close()
    return events


def profile_data(file: Path) -> int:
    """Read names and stamps into lists."""
    return sum(1 for event in _jax_events(file) if (event.name, event.start_ns, event.end_ns))


def profile_data_stats(file: Path) -> int:
    """Read the stats as well."""
    return sum(1 for event in _jax_events(file) if dict(event.stats) is not None and event.name)


def _jax_events(file: Path) -> Iterator[ProfileEvent]:
    from jax.profiler import ProfileData

    for plane in ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            yield from line.events


def xprof(file: Path) -> int:
    """Make the overview page from a copy without what xprof keeps beside its input."""
    from xprof.convert import raw_to_tool_data

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "host.xplane.pb"
        copy.symlink_to(file.resolve())
        raw_to_tool_data.xspace_to_tool_data([str(copy)], "overview_page", {})
    return 0


CONTESTANTS: dict[str, Callable[[Path], int]] = {
    "walk": walk,
    "moeprof_1": moeprof,
    "moeprof_all": moeprof,
    "profile_data": profile_data,
    "profile_data_stats": profile_data_stats,
    "xprof": xprof,
}
OTHERS = {"profile_data": "jax", "profile_data_stats": "jax", "xprof": "xprof"}


def run_here(name: str, file: Path, rounds: int) -> dict[str, float]:
    """Medians of one contestant in this process."""
    walls, cpus, events = [], [], 0
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        events = CONTESTANTS[name](file)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    wall_s, cpu_s = statistics.median(walls), statistics.median(cpus)
    return {"events": events, "wall_s": wall_s, "cpu_s": cpu_s, "peak_bytes": peak_bytes}


def run_apart(name: str, file: Path, rounds: int) -> dict[str, float] | None:
    """The same in a process of its own; None where the contestant cannot run."""
    threads = {"walk": "1", "moeprof_1": "1"}.get(name, "")
    command = [sys.executable, __file__, "--contestant", name, str(file), "--rounds", str(rounds)]
    environment = {**os.environ, "MOEPROF_THREADS": threads, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name} cannot run: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def contestants(size_mb: int) -> list[str]:
    """Who takes part at this size."""
    return [
        name
        for name in CONTESTANTS
        if name not in OTHERS
        or (size_mb <= LARGEST_OF_OTHERS_MB and importlib.util.find_spec(OTHERS[name]))
    ]


def measure(folder: Path, shape: str, size_mb: int, rounds: int) -> list[dict[str, object]]:
    """All contestants on one file, which is removed afterwards."""
    file = folder / f"{shape}-{size_mb}.xplane.pb"
    events = write(file, size_mb * 10**6, shape)
    size_bytes = file.stat().st_size
    rows: list[dict[str, object]] = []
    for name in contestants(size_mb):
        found = run_apart(name, file, 1 if name in OTHERS else rounds)
        if found is None:
            continue
        rows.append(
            {
                "contestant": name,
                "shape": shape,
                "size_bytes": size_bytes,
                "events": events,
                "wall_s": round(found["wall_s"], 4),
                "cpu_s": round(found["cpu_s"], 4),
                "mb_per_s": round(size_bytes / found["wall_s"] / 1e6, 1),
                "mb_per_cpu_s": round(size_bytes / found["cpu_s"] / 1e6, 1),
                "peak_bytes": int(found["peak_bytes"]),
            }
        )
        print(table_row(rows[-1]), flush=True)
    file.unlink()
    return rows


HEADER = (
    f"{'shape':<5}{'bytes':>13}{'events':>12}  {'contestant':<19}"
    f"{'wall s':>9}{'MB/s':>9}{'MB/cpu s':>9}{'peak MB':>9}"
)


def table_row(row: dict[str, object]) -> str:
    """One line of the printed table."""
    return (
        f"{row['shape']:<5}{row['size_bytes']:>13,}{row['events']:>12,}  {row['contestant']:<19}"
        f"{row['wall_s']:>9.3f}{row['mb_per_s']:>9}{row['mb_per_cpu_s']:>9}"
        f"{row['peak_bytes'] / 1e6:>9.0f}"
    )


def main() -> None:
    """Measure every size and shape, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, action="append", help="MB; 20, 200 and 1000 if absent")
    parser.add_argument("--shape", action="append", choices=["cpu", "gpu"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "ingest_decode.json")
    parser.add_argument("--contestant", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        name, file = options.contestant
        print(json.dumps(run_here(name, Path(file), options.rounds)))
        return
    about, rows = machine("jax", "xprof", "numpy"), []
    print(
        "shape   size bytes      events  contestant             wall s     MB/s MB/cpu s  peak MB"
    )
    folder = Path(tempfile.mkdtemp())
    try:
        for shape in options.shape or ("cpu", "gpu"):
            for size_mb in options.size or (20, 200, 1000):
                rows += measure(folder, shape, size_mb, options.rounds)
    finally:
        shutil.rmtree(folder)
    document = {"schema": "moeprof.bench/1", "machine": about, "measurements": rows}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
