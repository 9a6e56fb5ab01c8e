"""Damaged captures: does a figure stay right, is it withheld, or is it wrong under good trust?

    python benchmarks/mutations.py [--seeds 2] [--kind NAME…] [--capture NAME…] [--show]

Every kind of change is applied to the captures of ``tests/data``, and the headline figures of the
result (`headline.FIGURES`) are compared with those of the sound capture. A run is

- right: every figure is within 1 % of the sound one over the steps and devices that are left;
- withheld: figures are missing, and all that are there are right;
- wrong with a warning: a figure is off by more than 1 %, and a law failed or warns;
- wrong under good: a figure is off and the trust record is good. This must never be.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
import sys
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "ingest"))

import mutation_losses  # noqa: F401 (registers its kinds)
import mutation_same  # noqa: F401
import numpy as np
from descriptors import message_class
from headline import RESULTS, ROOT, Figure, headline, headline_of, is_same
from machine import machine
from mutation_kinds import KINDS, Kind, Space

from moeprof.errors import MoeprofError
from moeprof.ingest import open_run

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
    file = run if run.is_file() else next(run.glob("plugins/profile/*/*.xplane.pb.gz"))
    return message_class("tensorflow.profiler.XSpace").FromString(
        gzip.decompress(file.read_bytes())
    )


def damaged(run: Path, kind: Kind, seed: int, folder: Path) -> Path:
    """A copy of the capture in `folder` with the damage."""
    name = f"{run.name.partition('.')[0]}-{kind.name}"
    rng = random.Random(zlib.crc32(f"{name} {seed}".encode()))
    data = kind.change(read_space(run), rng)
    if run.is_file():
        made = folder / f"{name}.xplane.pb"
        made.write_bytes(data)
        return made
    made = folder / name
    shutil.copytree(run, made)
    file = next(made.glob("plugins/profile/*/*.xplane.pb.gz"))
    file.unlink()
    file.with_suffix("").write_bytes(data)
    return made


class Sound:
    """What is right of a capture, over all or some of its steps and devices."""

    def __init__(self, run: Path) -> None:
        """Read the sound capture."""
        self.trace = open_run(run)
        self.whole = headline_of(self.trace)
        self._parts: dict[tuple[object, ...], dict[str, Figure]] = {}

    def answers(self, steps: int) -> Iterator[dict[str, Figure]]:
        """Figures that a record of so many of the steps may give, the likeliest first.

        A record may leave out any steps and any devices but one.
        """
        table = self.trace.steps
        used = table["step"][table["used"]].tolist()
        devices = self.trace.devices[["host", "device"]].to_records(index=False).tolist()
        lost = [(), *([(place,) for place in devices] if len(devices) > 1 else [])]
        for gone in lost:
            for kept in combinations(used, steps):
                yield self._part(kept, gone)

    def _part(self, steps: tuple[int, ...], lost: tuple[tuple[str, int], ...]) -> dict[str, Figure]:
        if (steps, lost) not in self._parts:
            table, events = self.trace.steps, self.trace.events
            is_lost = np.zeros(len(events), bool)
            for host, device in lost:
                is_lost |= ((events["host"] == host) & (events["device"] == device)).to_numpy()
            part = replace(
                self.trace,
                steps=table.assign(used=table["step"].isin(steps)),
                events=events.assign(step=events["step"].where(~is_lost, -1)),
            )
            self._parts[steps, lost] = headline_of(part)["figures"]  # type: ignore[assignment]
        return self._parts[steps, lost]


def judged(sound: Sound, run: Path) -> tuple[str, dict[str, list[object]]]:
    """How the damaged run fares, and its wrong figures with the sound ones."""
    try:
        found = headline(run)
    except MoeprofError as error:
        return REFUSED, {"error": [str(error)]}
    after: Mapping[str, Figure] = found["figures"]  # type: ignore[assignment]
    before: Mapping[str, Figure] = sound.whole["figures"]  # type: ignore[assignment]
    nearest: dict[str, list[object]] | None = None
    for right in sound.answers(int(str(found["steps_used"]))):
        off = {
            name: [value, after[name]]
            for name, value in right.items()
            if after[name] is not None and not is_same(value, after[name], OFF)
        }
        if nearest is None or len(off) < len(nearest):
            nearest = off
        if not off:
            is_less = any(after[name] is None and before[name] is not None for name in before)
            return (WITHHELD if is_less else RIGHT), {}
    news = {law for law, v in found["laws"].items() if v != sound.whole["laws"].get(law, "ok")}  # type: ignore[attr-defined]
    is_good = not any(found["laws"][law] in ("warn", "fail") for law in news)  # type: ignore[index]
    if nearest is None:  # steps that the sound capture does not have
        nearest = {"steps_used": [sound.whole["steps_used"], found["steps_used"]]}
    return (WRONG if is_good else WARNED), nearest


def runs(
    kinds: list[Kind], chosen: Mapping[str, Path], seeds: int
) -> Iterator[tuple[Kind, str, int, str, dict[str, list[object]]]]:
    """Every kind over every capture with every seed, and how it fared."""
    sound = {name: Sound(run) for name, run in chosen.items()}
    for kind in kinds:
        for name, run in chosen.items():
            for seed in range(seeds):
                with tempfile.TemporaryDirectory() as folder:
                    made = damaged(run, kind, seed, Path(folder))
                    yield kind, name, seed, *judged(sound[name], made)


def main() -> int:
    """Apply, count, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--kind", action="append")
    parser.add_argument("--capture", action="append")
    parser.add_argument("--show", action="store_true", help="print the figures that are wrong")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if not given.kind or kind.name in given.kind]
    chosen = {n: r for n, r in captures().items() if not given.capture or n in given.capture}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    examples: dict[str, dict[str, object]] = {}
    for kind, name, seed, verdict, off in runs(kinds, chosen, given.seeds):
        counts[kind.name][verdict] += 1
        if verdict == WRONG:
            examples.setdefault(f"{kind.name} {name} {seed}", dict(off))
        if given.show and verdict not in (RIGHT, WITHHELD):
            print(f"{kind.name} {name} {seed}: {verdict}: {off}")
    for kind in kinds:
        told = ", ".join(f"{n} {what}" for what, n in counts[kind.name].most_common())
        print(f"{kind.name:40} {'loses' if kind.loses else 'same ':6} {told}")
    if given.write:
        result = {
            "machine": machine("numpy", "pandas"),
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
