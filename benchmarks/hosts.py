"""Question: what does a host more cost, where a run of many hosts is read host by host?

    python benchmarks/hosts.py [--hosts 8 --hosts 64 --hosts 256 --hosts 1024] [--rounds 3]

Each contestant is `moeprof analyze --only breakdown --json` as a process of its own, started cold,
in turn within each round: all hosts at once, or host by host in this process and by 1, 2 and 4
workers, and by 2 of which one is killed in the middle. A run of more than 1 GB is read by 2 workers
alone, once. Memory is the proportional set size of all
its processes together, workers and Dask's own included, as the largest of samples; processor time
is of all of them. Every host has a file of 4 MB that `tests/builders/big_xspace.py` wrote; the
bytes are in the page cache. What they print must be equal, but for the path.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from builders import big_xspace  # noqa: E402
from machine import environment, machine  # noqa: E402

RESULTS = Path(__file__).parent / "results"
ASKED = ("-m", "moeprof", "analyze", "--only", "breakdown", "--json")
CONTESTANTS: dict[str, tuple[str, ...]] = {
    "at once": ("--at-once",),
    "by host": ("--by-host", "--workers", "0"),
    "1 worker": ("--by-host", "--workers", "1"),
    "2 workers": ("--by-host", "--workers", "2"),
    "4 workers": ("--by-host", "--workers", "4"),
    "2 workers, one killed": ("--by-host", "--workers", "2"),
}
KILLED = "2 workers, one killed"
LARGE = ("2 workers",)
MOST_HOSTS = 256
_SAMPLE_S = 0.25


@dataclass(frozen=True)
class Measurement:
    """Medians over the rounds of one contestant; ``said`` is the digest of what it printed."""

    hosts: int
    contestant: str
    size_bytes: int
    rounds: int
    wall_ns: int
    cpu_ns: int
    peak_pss_bytes: int
    said: str


def _family(root: int) -> dict[int, int]:
    """A process and all that it started, by their numbers, and of which generation each is."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, left = {}, [(root, 0)]
    while left:
        process, generation = left.pop()
        found[process] = generation
        left += [(child, generation + 1) for child in parents.get(process, [])]
    return found


def _pss_bytes(processes: Iterable[int]) -> int:
    total = 0
    for process in processes:
        with suppress(OSError, StopIteration):
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            line = next(line for line in text.splitlines() if line.startswith("Pss:"))
            total += int(line.split()[1]) * 1024
    return total


def run_once(command: list[str], *, kills: bool) -> tuple[int, int, int, str]:
    """Wall and processor time in ns, the most PSS in bytes, and a digest of what was said.

    Raises:
        RuntimeError: it failed.
    """
    start = time.perf_counter_ns()
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=said, stderr=errors, env=environment())
        most, seen = 0, 0
        used_ns: dict[int, int] = {}
        while process.poll() is None:
            family = _family(process.pid)
            most = max(most, _pss_bytes(family))
            used_ns |= {each: ns for each in family if (ns := _cpu_ns(each))}
            # copies of the process that has all imports, which this one started
            workers = [each for each, generation in family.items() if generation == 2]
            seen += bool(workers)
            if kills and seen * _SAMPLE_S > 0.5 and workers:
                os.kill(workers[-1], signal.SIGKILL)
                kills = False
            time.sleep(_SAMPLE_S)
        wall = time.perf_counter_ns() - start
        if process.returncode not in (0, 3):
            errors.seek(0)
            raise RuntimeError(f"{command[1:]} failed: {errors.read()[-600:]!r}")
        if kills:
            raise RuntimeError(f"{command[1:]}: there was no worker to kill")
        said.seek(0)
        digest = hashlib.sha256(said.read()).hexdigest()[:16]
        return wall, sum(used_ns.values()), most, digest


def _cpu_ns(process: int) -> int:
    """Processor time of a process by now, without its children; 0 where it has ended.

    Sampled, as those that start workers do not wait for them: what is used after the last sample
    of a process is missed, less than a sample's interval.
    """
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        return int((int(fields[11]) + int(fields[12])) * 1e9 / os.sysconf("SC_CLK_TCK"))
    return 0


def measure(folder: Path, hosts: int, contestants: Sequence[str], rounds: int) -> list[Measurement]:
    """All contestants on one run, in turn within each round."""
    figures: dict[str, list[tuple[int, int, int, str]]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name in contestants:
            command = [sys.executable, *ASKED, str(folder), *CONTESTANTS[name]]
            figures[name].append(run_once(command, kills=name == KILLED))
    size = sum(file.stat().st_size for file in folder.iterdir())
    found = []
    for name, rows in figures.items():
        numbers = [int(statistics.median(row[at] for row in rows)) for at in range(3)]
        said = " ".join(sorted({row[3] for row in rows}))
        found.append(Measurement(hosts, name, size, rounds, *numbers, said))
    return found


def write_run(folder: Path, first: Path, hosts: int) -> Path:
    """A run whose hosts all recorded the same."""
    folder.mkdir()
    for host in range(hosts):
        os.link(first, folder / f"host{host:04}-p{host}.xplane.pb")
    return folder


def _make(file: Path) -> None:
    file.write_bytes(big_xspace.cpu_profile(devices=8, steps=11, ops=303))


def main() -> None:
    """Measure, print a table, write JSON; exits with 1 where answers differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", action="append", type=int)
    parser.add_argument("--contestant", action="append", choices=list(CONTESTANTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "hosts.json")
    options = parser.parse_args()
    about = machine("distributed", "pandas", "numpy", "pyarrow")
    contestants = options.contestant or list(CONTESTANTS)
    results: list[Measurement] = []
    print(f"{'hosts':>5} {'contestant':<23}{'wall s':>8}{'cpu s':>8}{'ms/host':>9}{'PSS MB':>8}")
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first.xplane.pb"
        with ProcessPoolExecutor(1) as pool:
            pool.submit(_make, first).result()
        for hosts in options.hosts or (8, 64, 256, 1024):
            run = write_run(Path(folder) / str(hosts), first, hosts)
            is_large = hosts > MOST_HOSTS and not options.contestant
            chosen, rounds = (LARGE, 1) if is_large else (contestants, options.rounds)
            for found in measure(run, hosts, chosen, rounds):
                results.append(found)
                each_ms = found.cpu_ns / hosts / 1e6
                print(
                    f"{hosts:>5} {found.contestant:<23}{found.wall_ns / 1e9:>8.1f}"
                    f"{found.cpu_ns / 1e9:>8.1f}{each_ms:>9.1f}{found.peak_pss_bytes / 1e6:>8.0f}",
                    flush=True,
                )
    are_equal = all(
        len({found.said for found in results if found.hosts == hosts}) == 1
        for hosts in {found.hosts for found in results}
    )
    document = {
        "schema": "moeprof.bench/1",
        "machine": about,
        "load": os.getloadavg(),
        "are_equal": are_equal,
        "measurements": [asdict(result) for result in results],
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"equal answers: {are_equal}; wrote {options.out}", file=sys.stderr)
    sys.exit(not are_equal)


if __name__ == "__main__":
    main()
