"""How much of the op time is named right, on programs that the classifier has not seen.

    python benchmarks/naming.py [--half rules|scoring|none] [--program NAME…] [--cpu] [--h100]
        [--variants] [--given] [--show] [--write NAME] [--cache FOLDER] [--cached]

The corpus is in ``benchmarks/naming/programs``: training steps as people write them, without
scopes unless their origin has them, whose lines say in a comment what they are. Each is captured
on CPU devices (three steps) and compiled for H100 GPUs without one; ops of the latter count by the
cost model of `cost_model`. All op time is the denominator: self time, no table's cut; an op of the
corpus counts with the shortest of its steps, as it runs on a busy machine. What is right for an op
is in `op_truth`, rule by rule; an op without a source has the truth of what uses it or made its
operands, a backward op that of its forward's line. ``unattributed`` is wrong.

``--variants`` adds each program renamed and with D = F, E = D or k = 1. ``--given`` scores the
captures of MaxText in ``tests/data`` and, where it is there, the one of ``../shared/data/naming``.
``--write`` puts the figures into ``results/NAME.json``. Programs whose framework is not installed
are left out and named; ``--cached`` leaves out what was not recorded before. CUDA's compiler is
looked for in ``cuda-plugin`` of the environment.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "naming"))

from captures import HALVES, Program, RecordError, place, programs, recording, variants
from headline import RESULTS, ROOT, SHARED
from machine import machine
from scoring import Score, calibration, largest_wrong, of_capture, of_program
from source_truth import of_json, of_script

READERS = {"cpu": partial(of_capture, least=True), "h100": of_program}
MOST_LOST = 2.0
"""Points that a variant may lose."""
COLUMNS = ("right", "guessed", "unattributed", "inherited", "untold")


def scored(program: Program, kind: str, cache: Path) -> Score:
    """Score one program, recorded or read from the cache."""
    path = recording(program, kind, cache)
    return READERS[kind](path, of_script(Path(program.file_name), program.text))


def given() -> Iterator[tuple[str, Path, Path]]:
    """(name, capture, truth) of captures that are no scripts of the corpus."""
    folder = ROOT / "tests" / "data" / "maxtext"
    for file in sorted(folder.glob("*.xplane.pb.gz")):
        yield f"maxtext/{file.name.partition('.')[0]}", file, folder / "truth.json"
    folder = SHARED / "naming"
    for file in sorted(folder.glob("*.xplane.pb.gz")):
        (truth,) = folder.glob("*.truth.json")
        yield f"given/{file.name.partition('.')[0]}", file, truth


def lines_of(program: Program) -> dict[str, str]:
    """Source lines by ``file:line``, for the list of wrong entries."""
    lines = program.text.splitlines()
    return {
        f"{program.file_name}:{n}": line.partition("# is:")[0].strip()[:60]
        for n, line in enumerate(lines, start=1)
    }


def main() -> int:
    """Score, print, write; 1 where a program could not be recorded."""
    asked = _arguments()
    kinds = [kind for kind in READERS if getattr(asked, kind)] or list(READERS)
    rows: dict[str, dict[str, object]] = {}
    scores: list[Score] = []
    failed = []
    print(f"{'':48}" + "".join(f"{name:>13}" for name in COLUMNS))
    for program in _chosen(asked):
        if not program.is_possible:
            print(f"{program.name}: left out, needs {', '.join(program.needs)}")
            continue
        for kind in kinds:
            for each in (program, *(variants(program) if asked.variants else ())):
                if asked.cached and not place(each, kind, asked.cache).exists():
                    continue
                try:
                    score = scored(each, kind, asked.cache)
                except RecordError as error:
                    failed.append(str(error))
                    continue
                name = f"{program.half}/{program.name}"
                row = rows.setdefault(f"{name} {kind}", {"half": program.half, "kind": kind})
                _add(row, each.variant, score)
                print(_line(f"{name} {kind} {each.variant}", score), flush=True)
                if not each.variant:
                    scores.append(score)
                if asked.show:
                    print("\n".join(largest_wrong(score, lines_of(each))))
    for name, capture, truth in given() if asked.given else ():
        score = of_capture(capture, of_json(truth))
        rows[name] = {"half": "given", "kind": "capture", **score.row()}
        print(_line(name, score))
        if asked.show:
            print("\n".join(largest_wrong(score, {})))
    calibrated = calibration(scores)
    _summary(rows, calibrated)
    if asked.write:
        _write(asked.write, rows, calibrated)
    print("\n".join(failed))
    return int(bool(failed))


def _add(row: dict[str, object], variant: str, score: Score) -> None:
    if not variant:
        row.update(score.row())
        return
    known = row.setdefault("variants", {})
    assert isinstance(known, dict)
    known[variant] = score.row()["right"]
    if "right" in row:
        row["lost"] = round(float(str(row["right"])) - min(known.values()), 2)


def _line(name: str, score: Score) -> str:
    return f"{name:48}" + "".join(f"{score.row()[column]:11.1f} %" for column in COLUMNS)


def _summary(rows: Mapping[str, Mapping[str, object]], calibrated: Mapping[str, object]) -> None:
    for group in sorted({(str(r["half"]), str(r["kind"])) for r in rows.values()}):
        found = [float(str(r["right"])) for r in rows.values() if (r["half"], r["kind"]) == group]
        if found:
            above = sum(value >= 95 for value in found)
            mean = sum(found) / len(found)
            print(
                f"{group[0]} {group[1]}: {len(found)} programs, mean {mean:.1f} %, least "
                f"{min(found):.1f} %, {above} of them at 95 % or more"
            )
    for name, row in rows.items():
        if float(str(row.get("lost", 0))) > MOST_LOST:
            print(f"{name}: a variant loses {row['lost']} points: {row['variants']}")
    if calibrated:
        print(json.dumps(calibrated, indent=1))


def _write(
    name: str, rows: Mapping[str, Mapping[str, object]], calibrated: Mapping[str, object]
) -> None:
    git = ["git", "-C", str(ROOT), "log", "-1", "--format=%H", "--", "analyzers", "moeprof"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    document = {
        "machine": machine("jax", "jaxlib", "optax", "flax"),
        "rules": commit,
        "programs": rows,
        "calibration": calibrated,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")


def _chosen(asked: argparse.Namespace) -> Sequence[Program]:
    if asked.half == "none":
        return []
    return [p for p in programs(asked.half) if not asked.program or p.name in asked.program]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", choices=(*HALVES, "none"))
    parser.add_argument("--program", nargs="+", default=[])
    for flag in ("cpu", "h100", "variants", "given", "show", "cached"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--write", metavar="NAME")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "naming")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
