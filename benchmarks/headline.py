"""The headline figures of captures: a fixed list, so that two versions can be held side by side.

    python benchmarks/headline.py [--write NAME] [--beside NAME] [RUN…]

Without RUN the captures of ``tests/data`` are read, and where it is there those of
``../shared/data``. ``--write`` puts the figures into ``results/NAME.json``; ``--beside`` prints
every figure that is not the same as in that file, and ends with 1 where one is there no more.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moeprof.tables.trace import Trace

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
SHARED = ROOT.parent / "shared" / "data"

FIGURES = {
    "step_time": ("step_time_median", "interval_median", "interval_mean", "busy_share"),
    "breakdown": ("op_time", "busy_time", "moe_share", "unattributed_share"),
    "timeline": (
        "compute_share",
        "exposed_communication_share",
        "exposed_copy_share",
        "idle_share",
        "hidden_communication_share",
    ),
    "grouped_gemm": ("grouped_gemm_time",),
    "dispatch_combine": ("exchange_time", "dispatch_time", "combine_time"),
    "collectives": ("collective_time", "collective_wait_share"),
    "stragglers": ("straggler", "waited_for"),
    "sync_gaps": ("idle_time", "host_late_time"),
    "launch": ("kernels_per_step", "launch_latency_median", "launch_calls_per_step"),
    "receive_buffers": ("largest_buffer", "utilisation"),
    "memory": ("program_peak", "argument", "temp"),
    "expert_load": ("worst_expert_imbalance", "worst_rank_imbalance", "tax_most"),
    "roofline": ("hardware_flops", "mfu"),
}
"""The fixed list: metrics by question."""

Figure = float | str | None


def captures() -> Iterator[tuple[str, Path]]:
    """Clean captures by name: run folders and profiles."""
    for folder in sorted((ROOT / "tests" / "data" / "gpu").iterdir()):
        yield f"gpu/{folder.name}", folder
    for folder in (ROOT / "tests" / "data" / "maxtext", SHARED / "traces", SHARED / "naming"):
        for file in sorted(folder.glob("*.xplane.pb*")):
            yield f"{folder.name}/{file.name.partition('.')[0]}", file


def headline(run: Path) -> dict[str, object]:
    """Figures of a run by ``question.metric``, its steps, and the verdict of every law."""
    from moeprof.ingest import open_run

    return headline_of(open_run(run))


def headline_of(trace: Trace) -> dict[str, object]:
    """The same of a trace that is open."""
    from moeprof.analyzers import analyze
    from moeprof.cli.findings import is_partial
    from moeprof.reports.run.document import build

    document = build(trace, analyze(trace, tuple(FIGURES)))
    figures: dict[str, Figure] = {}
    for question, metrics in FIGURES.items():
        found = {m["metric"]: m["value"] for m in document["analyses"][question]["headline"]}
        figures |= {f"{question}.{metric}": found.get(metric) for metric in metrics}
    steps = [step for step in document["steps"] if step["used"]]
    return {
        "figures": figures,
        "devices": document["run"]["devices"],
        "steps_used": len(steps),
        "laws": {law["check"]: law["verdict"] for law in document["trust"]},
        "withholds": sorted(
            {q for law in document["trust"] for q in law["withholds"]}
            | {scope["question"] for law in document["trust"] for scope in law.get("scopes", ())}
        ),
        "exit_code": 3 if is_partial(document) else 0,
    }


def is_same(one: Figure, other: Figure, part: float) -> bool:
    """Whether two figures agree to `part` of the first one; shares to `part` of 1 at least."""
    if isinstance(one, str) or isinstance(other, str) or one is None or other is None:
        return one == other
    scale = max(abs(one), 1.0 if max(abs(one), abs(other)) <= 1.0 else 0.0)
    return math.isclose(one, other, rel_tol=0.0, abs_tol=part * scale)


def _differences(before: Mapping[str, dict], after: Mapping[str, dict]) -> Iterator[str]:
    """A line per figure that is another one, and per law, step or exit code."""
    for name in before.keys() & after.keys():
        old, new = before[name], after[name]
        for figure, value in old["figures"].items():
            found = new["figures"].get(figure)
            if not is_same(value, found, 1e-9):
                mark = "GONE " if found is None else ""
                yield f"{mark}{name}: {figure} {value} -> {found}"
        for key in ("devices", "steps_used", "exit_code", "withholds"):
            if old[key] != new[key]:
                yield f"{name}: {key} {old[key]} -> {new[key]}"
        for law, verdict in new["laws"].items():
            if verdict not in ("ok", old["laws"].get(law)):
                yield f"{name}: law {law} {old['laws'].get(law, 'not there')} -> {verdict}"


def main() -> int:
    """Read the captures, write and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--write", metavar="NAME")
    parser.add_argument("--beside", metavar="NAME")
    given = parser.parse_args()
    runs = [(str(run), run) for run in given.runs] or list(captures())
    found = {name: headline(run) for name, run in runs}
    if given.write:
        text = json.dumps(found, indent=1, allow_nan=False)
        (RESULTS / f"{given.write}.json").write_text(text + "\n")
    lines = []
    if given.beside:
        before = json.loads((RESULTS / f"{given.beside}.json").read_text())
        lines = sorted(_differences(before, found))
        print("\n".join(lines) or "every figure is the same")
    return int(any(line.startswith("GONE") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
