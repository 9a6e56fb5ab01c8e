"""Question: how long does a profile take from its bytes to a breakdown, beside other readers?

    python benchmarks/ingest.py [--case mixed_600k …] [--rounds 5]

Each contestant is a process of its own, started cold (imports included, from bytecode, as packages
are installed with it) in turn within each round, so that what else the machine does hits all alike.
A round before the first is not counted. No answer is kept from one to the next, but for those
contestants that take a second look, which the uncounted round is the first of. Time is that of the
whole process, memory the peak resident set that the system reports for it. The profiles are written
by `tests/builders/big_xspace.py`, those of PyTorch are a recorded trace many times over; their
bytes are in the page cache.

Contestants other than `moeprof` do less: `jax.profiler.ProfileData` decodes every event with its
stats and adds up time by name, in Python; xprof converts the profile to its framework_op_stats
(through the C++ it ships). They take part where they are installed. ``import pandas`` reads
nothing: it is what moeprof's answers took at least while they were made with it.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from builders import big_xspace  # noqa: E402
from machine import environment, machine  # noqa: E402

RESULTS = Path(__file__).parent / "results"
FILE = "{file}"

_PROFILE_DATA = """
import sys
from collections import Counter
from jax.profiler import ProfileData
spent = Counter()
for plane in ProfileData.from_file(sys.argv[1]).planes:
    for line in plane.lines:
        for event in line.events:
            spent[event.name, dict(event.stats).get("hlo_op")] += event.duration_ns
print(len(spent))
"""
_XPROF = """
import sys
import tempfile
from pathlib import Path
from xprof.convert import raw_to_tool_data
with tempfile.TemporaryDirectory() as folder:  # xprof keeps what it found beside its input
    copy = Path(folder) / "host0.xplane.pb"
    copy.symlink_to(sys.argv[1])
    data, _ = raw_to_tool_data.xspace_to_tool_data([str(copy)], "framework_op_stats", {})
print(len(data))
"""
CONTESTANTS: dict[str, tuple[str, ...]] = {
    "moeprof": ("-m", "moeprof", "analyze", "--only", "breakdown", "--json", FILE),
    "jax.profiler.ProfileData": ("-c", _PROFILE_DATA, FILE),
    "xprof framework_op_stats": ("-c", _XPROF, FILE),
    "import pandas": ("-c", "import pandas"),
}
SECOND_LOOK = {
    "moeprof analyze, second look": ("-m", "moeprof", "analyze", FILE),
    "moeprof report, second look": ("-m", "moeprof", "report", FILE, "-o", f"{FILE}.html"),
}
NEEDS = {
    "moeprof": "moeprof",
    **dict.fromkeys(SECOND_LOOK, "moeprof"),
    "import pandas": "pandas",
    "jax.profiler.ProfileData": "jax",
    "xprof framework_op_stats": "xprof",
}


@dataclass(frozen=True)
class Case:
    """A profile to make, and how many hosts' files of it are read at once."""

    make: Callable[[], bytes]
    contestants: tuple[str, ...] = tuple(CONTESTANTS)
    hosts: int = 1
    most_rounds: int = 99
    ending: str = ".xplane.pb"


_IDS = ("External id", "correlation", "Python id", "Python parent id", "Ev Idx", "Sequence number")


def torch_trace(events: int) -> bytes:
    """A recorded trace of training on a GPU, with stacks and shapes, as often as is needed.

    Each time has stamps, ids and numbers of steps of its own.
    """
    recorded = gzip.decompress((ROOT / "tests/data/torch/full.pt.trace.json.gz").read_bytes())
    trace = json.loads(recorded)
    names = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    timed = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    starts = [event["ts"] for event in timed]
    length = 1.01 * (max(starts) - min(starts))
    steps = sum(
        event.get("cat") == "user_annotation" and "Step#" in event["name"] for event in timed
    )

    def again(event: dict[str, Any], time: int) -> dict[str, Any]:
        args = dict(event.get("args", {}))
        args |= {key: args[key] + time * 10**6 for key in _IDS if args.get(key)}
        changed = {**event, "ts": round(event["ts"] + time * length, 3), "args": args}
        if "id" in event:
            changed["id"] += time * 10**6
        if (begin := "ProfilerStep#") in event["name"]:
            changed["name"] = f"{begin}{int(event['name'].removeprefix(begin)) + time * steps}"
        return changed

    times = -(-events // len(timed))
    trace["traceEvents"] = names + [again(event, time) for time in range(times) for event in timed]
    return json.dumps(trace).encode()


RECORDED = ROOT / "tests/data/gpu/sparse-gmm/plugins/profile/run/node0-p0.xplane.pb.gz"
CASES: dict[str, Case] = {
    "small": Case(
        lambda: big_xspace.gpu_profile(devices=1, steps=4, kernels=800, python_calls=5_000)
    ),
    "recorded_2mb": Case(lambda: gzip.decompress(RECORDED.read_bytes())),
    "mixed_600k": Case(
        lambda: big_xspace.gpu_profile(devices=2, steps=4, kernels=4700, python_calls=525_000)
    ),
    "kernels_600k": Case(
        lambda: big_xspace.gpu_profile(devices=8, steps=10, kernels=3750), ("moeprof",)
    ),
    "cpu_3640k": Case(
        lambda: big_xspace.cpu_profile(devices=8, steps=500, ops=303),
        (*CONTESTANTS, *SECOND_LOOK),
        most_rounds=5,
    ),
    "cpu_100mb": Case(lambda: big_xspace.cpu_profile(devices=8, steps=270, ops=303), ("moeprof",)),
    "cpu_1gb": Case(
        lambda: big_xspace.cpu_profile(devices=8, steps=2700, ops=303), ("moeprof",), most_rounds=3
    ),
    "hosts_8x100mb": Case(
        lambda: big_xspace.cpu_profile(devices=8, steps=270, ops=303),
        ("moeprof",),
        hosts=8,
        most_rounds=3,
    ),
    "kernels_4m": Case(
        lambda: big_xspace.gpu_profile(devices=8, steps=10, kernels=50_000, python_calls=1_000_000),
        ("moeprof",),
        most_rounds=3,
    ),
    "torch_1m": Case(lambda: torch_trace(1_000_000), ("moeprof",), ending=".pt.trace.json"),
    "torch_1m_gz": Case(
        lambda: gzip.compress(torch_trace(1_000_000), 6), ("moeprof",), ending=".pt.trace.json.gz"
    ),
}


@dataclass(frozen=True)
class Measurement:
    """Medians over the rounds of one contestant on one case."""

    case: str
    contestant: str
    size_bytes: int
    rounds: int
    wall_ns: int
    cpu_ns: int
    peak_rss_bytes: int


def run_once(command: list[str], cache: str = "off") -> tuple[int, int, int]:
    """Wall and processor time in ns and peak resident bytes of a process.

    ``cache`` is where it keeps answers.

    Raises:
        RuntimeError: it failed.
    """
    start = time.perf_counter_ns()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=environment(cache)
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter_ns() - start
        if os.waitstatus_to_exitcode(status) != 0:
            errors.seek(0)
            raise RuntimeError(f"{command[1:3]} failed: {errors.read()[-600:]!r}")
    return wall, int((used.ru_utime + used.ru_stime) * 1e9), used.ru_maxrss * 1024


def measure(name: str, case: Case, folder: Path, rounds: int) -> list[Measurement]:
    """All contestants that are installed, in turn within each round."""
    file = _written(name, case, folder)
    present = [c for c in case.contestants if importlib.util.find_spec(NEEDS[c]) is not None]
    figures: dict[str, list[tuple[int, int, int]]] = {c: [] for c in present}
    for number in range(min(rounds, case.most_rounds) + 1):
        for contestant in present:
            words = (CONTESTANTS | SECOND_LOOK)[contestant]
            arguments = [part.replace(FILE, str(file)) for part in words]
            cache = str(folder / "cache") if contestant in SECOND_LOOK else "off"
            try:
                figure = run_once([sys.executable, *arguments], cache)
                figures[contestant] += [figure] if number else []
            except RuntimeError as error:  # installed in part, or out of memory
                print(f"{contestant} cannot run: {error}", file=sys.stderr)
    size = sum(path.stat().st_size for path in file.rglob("*.pb")) or file.stat().st_size
    return [
        Measurement(
            name,
            contestant,
            size,
            len(rows),
            *(int(statistics.median(c)) for c in zip(*rows, strict=True)),
        )
        for contestant, rows in figures.items()
        if rows
    ]


def _written(name: str, case: Case, folder: Path) -> Path:
    """The profile, or the session folder of several hosts."""
    first = folder / name / f"host0{case.ending}"
    first.parent.mkdir()
    with ProcessPoolExecutor(1) as pool:  # a child's peak memory is at least that of its parent
        pool.submit(_make, name, first).result()
    for host in range(1, case.hosts):
        shutil.copy(first, first.with_name(f"host{host}{case.ending}"))
    return first if case.hosts == 1 else first.parent


def _make(name: str, file: Path) -> None:
    file.write_bytes(CASES[name].make())


def main() -> None:
    """Measure every case, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "ingest.json")
    options = parser.parse_args()
    about = machine("jax", "xprof", "pandas", "numpy", "pyarrow")
    results: list[Measurement] = []
    print(f"{'case':<15}{'contestant':<27}{'MB':>7}{'wall s':>9}{'cpu s':>8}{'peak MB':>9}")
    for name in options.case or CASES:
        with tempfile.TemporaryDirectory() as folder:
            for found in measure(name, CASES[name], Path(folder), options.rounds):
                results.append(found)
                print(
                    f"{found.case:<15}{found.contestant:<27}{found.size_bytes / 1e6:>7.0f}"
                    f"{found.wall_ns / 1e9:>9.2f}{found.cpu_ns / 1e9:>8.2f}"
                    f"{found.peak_rss_bytes / 1e6:>9.0f}",
                    flush=True,
                )
    document = {
        "schema": "moeprof.bench/1",
        "machine": about,
        "measurements": [asdict(result) for result in results],
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
