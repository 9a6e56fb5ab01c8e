"""Damaged captures: does a figure stay right, is it withheld, or is it wrong under good trust?

    python benchmarks/mutations.py [--seeds 2] [--kind NAME…] [--capture NAME…] [--processes 2]

Every kind of change is applied to the captures of ``tests/data``, and the headline figures of the
result (`headline.FIGURES`) are compared with those of the sound capture. A run is

- right: every figure is within 1 % of the sound one over the steps and devices that are left;
- withheld: figures are missing, and all that are there are right;
- wrong with a warning: a figure is off by more than 1 %, and a law failed or warns;
- wrong under good: a figure is off and the trust record is good. This must never be.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import random
import shutil
import sys
import tempfile
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "ingest"))

import mutation_losses  # noqa: F401 (registers its kinds)
import mutation_same  # noqa: F401
from descriptors import message_class
from headline import RESULTS, ROOT, Figure, headline_of, is_same
from machine import machine
from mutation_folders import FOLDER_KINDS, FolderKind, profile_of
from mutation_kinds import KINDS, Kind, Space

from moeprof.errors import MoeprofError
from moeprof.ingest import open_run
from moeprof.tables.trace import Trace

OFF = 0.01
RIGHT, WITHHELD, WARNED, WRONG = "right", "withheld", "wrong_with_a_warning", "wrong_under_good"
REFUSED = "refused"


def captures() -> dict[str, Path]:
    """Captures of the repository by name: run folders and profiles."""
    data = ROOT / "tests" / "data"
    found = {f"gpu/{folder.name}": folder for folder in sorted((data / "gpu").iterdir())}
    return found | {
        f"maxtext/{file.name.partition('.')[0]}": file
        for file in sorted((data / "maxtext").glob("*.xplane.pb.gz"))
    }


def read_space(run: Path) -> Space:
    """The profile of a capture as a message."""
    file = profile_of(run)
    return message_class("tensorflow.profiler.XSpace").FromString(
        gzip.decompress(file.read_bytes())
    )


def damaged(run: Path, kind: Kind | FolderKind, seed: int, folder: Path) -> Path:
    """A copy of the capture in `folder` with the damage."""
    name = f"{run.name.partition('.')[0]}-{kind.name}"
    rng = random.Random(zlib.crc32(f"{name} {seed}".encode()))
    space = read_space(run)
    data = space.SerializeToString() if isinstance(kind, FolderKind) else kind.change(space, rng)
    made = folder / (f"{name}.xplane.pb" if run.is_file() else name)
    if run.is_file():
        made.write_bytes(data)
    else:
        shutil.copytree(run, made)
        file = profile_of(made)
        file.unlink()
        file.with_suffix("").write_bytes(data)
    return kind.change(made, rng) if isinstance(kind, FolderKind) else made


ALL_KINDS: list[Kind | FolderKind] = [*KINDS, *FOLDER_KINDS]


class Sound:
    """What is right of a capture, over all or some of its steps and devices."""

    def __init__(self, run: Path) -> None:
        """Read the sound capture."""
        self.trace = open_run(run)
        self.whole = headline_of(self.trace)
        self._parts: dict[tuple[object, ...], dict[str, Figure]] = {}

    def answers(self, found: Trace) -> Iterator[dict[str, Figure]]:
        """Figures that `found`, a record of some steps and devices, may give, the likeliest first.

        A record may leave out any steps and devices; which devices, it says itself.
        """
        yield self.whole["figures"]  # type: ignore[misc]
        table = self.trace.steps
        used = table["step"][table["used"]].tolist()
        kept = min(int(found.steps["used"].sum()), len(used))
        places = [set(own.events["device"].unique().tolist()) for own in (self.trace, found)]
        lost = tuple(sorted(places[0] - places[1])) if places[0] > places[1] else ()
        likely = []
        if len(found.steps) == len(table):
            is_used = found.steps["used"].to_numpy() & table["used"].to_numpy()
            likely.append(tuple(table["step"].to_numpy()[is_used].tolist()))
        for steps in dict.fromkeys([*likely, *combinations(used, kept)]):
            yield self._part(steps, lost)

    def _part(self, steps: tuple[int, ...], lost: tuple[int, ...]) -> dict[str, Figure]:
        if (steps, lost) not in self._parts:
            part = _without(self.trace, lost) if lost else self.trace
            table = part.steps.assign(used=part.steps["step"].isin(steps))
            self._parts[steps, lost] = headline_of(replace(part, steps=table))["figures"]  # type: ignore[assignment]
        return self._parts[steps, lost]


def _without(trace: Trace, lost: tuple[int, ...]) -> Trace:
    """The trace as if these devices had not been there: steps last as long as the others work."""
    frames = {
        name: table[~table["device"].isin(lost)].reset_index(drop=True)
        for name in ("events", "devices", "executions", "rendezvous")
        for table in [getattr(trace, name)]
    }
    runs = frames["executions"].assign(
        end_ns=frames["executions"]["start_ns"] + frames["executions"]["duration_ns"]
    )
    ends = runs.groupby("step").agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"))
    ends = ends.reindex(trace.steps["step"]).reset_index()
    start_ns = ends["start_ns"].fillna(trace.steps["start_ns"]).astype("int64")
    duration_ns = (ends["end_ns"] - start_ns).fillna(trace.steps["duration_ns"]).astype("int64")
    return replace(
        trace,
        meta=replace(trace.meta, devices=trace.meta.devices - len(lost)),
        steps=trace.steps.assign(start_ns=start_ns, duration_ns=duration_ns),
        **frames,
    )


def judged(sound: Sound, run: Path) -> tuple[str, dict[str, list[object]]]:
    """How the damaged run fares, and its wrong figures with the sound ones."""
    try:
        trace = open_run(run)
        found = headline_of(trace)
    except MoeprofError as error:
        return REFUSED, {"error": [str(error)]}
    after: Mapping[str, Figure] = found["figures"]  # type: ignore[assignment]
    before: Mapping[str, Figure] = sound.whole["figures"]  # type: ignore[assignment]
    is_good = _is_good(sound, found["laws"])  # type: ignore[arg-type]
    nearest: dict[str, list[object]] | None = None
    for right in sound.answers(trace):
        off = {
            name: [value, after[name]]
            for name, value in right.items()
            if after[name] is not None
            and not is_same(before[name] if value is None else value, after[name], OFF)
        }
        if not is_good:  # it says how much the record does not tell, and no more than it does
            off.pop(_NOT_TOLD, None)
        if nearest is None or len(off) < len(nearest):
            nearest = off
        if not off:
            is_less = any(after[name] is None and before[name] is not None for name in before)
            return (WITHHELD if is_less else RIGHT), {}
    return (WRONG if is_good else WARNED), nearest or {}


_NOT_TOLD = "breakdown.unattributed_share"


def _is_good(sound: Sound, laws: Mapping[str, str]) -> bool:
    """Whether no law warns that did not before."""
    before: Mapping[str, str] = sound.whole["laws"]  # type: ignore[assignment]
    return not any(
        verdict in ("warn", "fail") and verdict != before.get(law, "ok")
        for law, verdict in laws.items()
    )


Outcome = tuple[str, str, int, str, dict[str, list[object]]]
"""Kind, capture, seed, verdict, and the figures that are off."""


@functools.cache
def _sound(name: str) -> Sound:
    return Sound(captures()[name])


def run_one(kind_name: str, name: str, seed: int) -> Outcome:
    """Apply a kind to a capture, and see how it fares."""
    kind = next(kind for kind in ALL_KINDS if kind.name == kind_name)
    with tempfile.TemporaryDirectory() as folder:
        made = damaged(captures()[name], kind, seed, Path(folder))
        return (kind_name, name, seed, *judged(_sound(name), made))


def runs(
    kinds: Sequence[Kind | FolderKind],
    chosen: Sequence[str],
    seeds: int,
    processes: int,
    limit_s: float,
) -> Iterator[Outcome]:
    """Every kind over every capture with every seed, until the time is up."""
    ends = time.monotonic() + limit_s
    tasks = [(kind.name, name, seed) for seed in range(seeds) for kind in kinds for name in chosen]
    with ProcessPoolExecutor(processes) as pool:
        futures = [pool.submit(run_one, *task) for task in tasks]
        for future in futures:
            if time.monotonic() > ends:
                pool.shutdown(wait=False, cancel_futures=True)
                return
            yield future.result()


def main() -> int:
    """Apply, count, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--kind", action="append")
    parser.add_argument("--capture", action="append")
    parser.add_argument("--show", action="store_true", help="print the figures that are wrong")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=7200, help="stop there with what ran")
    given = parser.parse_args()
    kinds = [kind for kind in ALL_KINDS if not given.kind or kind.name in given.kind]
    chosen = [name for name in captures() if not given.capture or name in given.capture]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    examples: dict[str, dict[str, object]] = {}
    ran = runs(kinds, chosen, given.seeds, given.processes, given.limit_s)
    for kind_name, name, seed, verdict, off in ran:
        counts[kind_name][verdict] += 1
        if verdict == WRONG:
            examples.setdefault(f"{kind_name} {name} {seed}", dict(off))
        if given.show and verdict not in (RIGHT, WITHHELD):
            print(f"{kind_name} {name} {seed}: {verdict}: {off}", flush=True)
    for kind in kinds:
        told = ", ".join(f"{n} {what}" for what, n in counts[kind.name].most_common())
        print(f"{kind.name:40} {'loses' if kind.loses else 'same ':6} {told}")
    if given.write:
        result = {
            "machine": machine("numpy", "pandas"),
            "captures": chosen,
            "asked": len(kinds) * len(chosen) * given.seeds,
            "ran": sum(sum(each.values()) for each in counts.values()),
            "kinds": {
                kind.name: {
                    "loses": kind.loses,
                    "invisible_as": kind.invisible or None,
                    **{v: counts[kind.name][v] for v in (RIGHT, WITHHELD, REFUSED, WARNED, WRONG)},
                }
                for kind in kinds
            },
            "wrong_under_good": examples,
        }
        (RESULTS / "mutations.json").write_text(json.dumps(result, indent=1) + "\n")
    wrong = sum(counts[kind.name][WRONG] for kind in kinds if not kind.invisible)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
