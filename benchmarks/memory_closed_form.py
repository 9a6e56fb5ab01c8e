"""Question: how near is the closed form to what XLA lays out, on cases it was not made with?

    python benchmarks/memory_closed_form.py [--lines results/memory_grid.jsonl] [--residuals]

Projects every case of `memory_grid.py` (the bundled model compiled for H100) and compares args +
temp with the compiler's. Counts of live tensors (`projector/frameworks/bundled`) were
chosen with the ``fit`` half alone; figures of the ``test`` half are the accuracy. ``--residuals``
shows, for the fit half, what least squares would make of each count: by how much it would move. The
steps of `gpu/memory.py`, which ran on two H200, are set beside their projection too: ``measured``.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from memory_grid_cases import Case

from moeprof.projector.breakdown import MemoryBreakdown
from moeprof.projector.memory import project
from moeprof.projector.setting import Precision, Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import GqaSpec, MlaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import parse_strategy

RESULTS = Path(__file__).parent / "results"
ENDS = {"": "memory_grid.jsonl", "libraries": "memory_grid_library.jsonl"}
"""Compiled steps by the end of a projection that answers to them: XLA's own choice of kernels for
products, and libraries' alone."""
WITHIN = (0.05, 0.12)
"""Aims: median and 95th percentile of the absolute error."""


class Scored(NamedTuple):
    """A case, what the compiler laid out, and the projection. Bytes."""

    case: Case
    split: str
    args: int
    temp: int
    projected: MemoryBreakdown
    end: str = ""

    @property
    def projected_temp(self) -> int:
        """The arena at its end."""
        own, other = self.projected.temp_bytes, self.projected.library_temp_bytes
        return (other if self.end else own) or 0

    @property
    def error(self) -> float:
        """(projected - compiled) / compiled of args + temp."""
        projected = (self.projected.args_bytes or 0) + self.projected_temp
        return projected / (self.args + self.temp) - 1


def setting_of(case: Case) -> Setting:
    """The case as the closed form takes it."""
    dtype = case.weight_dtype
    return Setting(
        case.model,
        case.plan,
        case.parsed_strategy,
        load_hardware("h100_sxm"),
        sequence=case.sequence,
        pdbs=case.pdbs,
        framework="bundled",
        precision=Precision(
            weights=dtype, first_moment=dtype, second_moment=dtype, gradients=dtype
        ),
    )


@functools.cache
def _projected(case: Case) -> MemoryBreakdown:
    return project(setting_of(case))


def read_lines(path: Path, end: str = "") -> list[Scored]:
    """Every case that was compiled, beside an end of its projection."""
    scored = []
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if "temp_bytes" not in line:
            continue
        case = Case(**line["case"])
        sizes = line["argument_bytes"], line["temp_bytes"]
        scored.append(Scored(case, line["split"], *sizes, _projected(case), end))
    return scored


def read_measured(path: Path) -> list[dict[str, Any]]:
    """The steps that `gpu/memory.py` ran: the allocator's peak and the projection, bytes."""
    run = json.loads(path.read_text(encoding="utf-8"))
    attention = run["model"]["attention"]
    spec = MlaSpec(**attention["mla"]) if "mla" in attention else GqaSpec(**attention["gqa"])
    model = ModelSpec(**{**run["model"], "attention": spec})
    dtype = model.weight_dtype
    found = []
    for case in run["cases"]:
        if "allocator_peak_bytes" not in case:
            continue
        setting = Setting(
            model,
            ParallelPlan(expert=run["expert"], remat=Remat(case["remat"])),
            parse_strategy(case["strategy"]),
            load_hardware("h200_sxm"),
            sequence=run["sequence"],
            pdbs=case["pdbs"],
            framework="bundled",
            precision=Precision(weights=dtype, first_moment=dtype, second_moment=dtype),
        )
        projected, peak = project(setting), max(case["allocator_peak_bytes"])
        inside = projected.inside_bytes or 0
        found.append(
            {
                "strategy": case["strategy"],
                "pdbs": case["pdbs"],
                "remat": case["remat"],
                "allocator_peak_bytes": peak,
                "projected_bytes": inside,
                "range_bytes": projected.inside_range_bytes,
                "error": round(inside / peak - 1, 4),
                "args_are_equal": projected.args_bytes == case["argument_bytes"],
            }
        )
    return found


def figures(scored: Iterable[Scored]) -> dict[str, float | int]:
    """Median and 95th percentile of the absolute error, and the median with its sign."""
    errors = np.array([one.error for one in scored])
    if not errors.size:
        return {"cases": 0}
    return {
        "cases": len(errors),
        "median_abs_error": round(float(np.median(np.abs(errors))), 4),
        "p95_abs_error": round(float(np.percentile(np.abs(errors), 95)), 4),
        "median_error": round(float(np.median(errors)), 4),
    }


def by(scored: Iterable[Scored], key: Callable[[Scored], str]) -> dict[str, dict[str, Any]]:
    """`figures` per group."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        groups[key(one)].append(one)
    return {name: figures(groups[name]) for name in sorted(groups)}


def residuals(scored: Iterable[Scored]) -> dict[str, dict[str, Any]]:
    """Per strategy, what least squares over the fullest peaks' rows makes of each count.

    Non-negative factors on the rows of `temp`, relative errors squared: 1.0 leaves a count as it
    is.
    """
    import scipy.optimize  # the rest, which CI runs, does without

    groups: dict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        groups[one.case.parsed_strategy.kind].append(one)
    found = {}
    for strategy, members in sorted(groups.items()):
        names = sorted({row.name for one in members for row in one.projected.worst.peak.rows})
        matrix = np.zeros((len(members), len(names)))
        for i, one in enumerate(members):
            for row in one.projected.worst.peak.rows:
                matrix[i, names.index(row.name)] += float(row.size_bytes or 0) / one.temp
        factors, residual = scipy.optimize.nnls(matrix, np.ones(len(members)))
        share = matrix.mean(axis=0)
        found[strategy] = {
            "root_mean_square": round(float(residual / np.sqrt(len(members))), 4),
            "factors": {
                name: [round(float(f), 2), round(float(s), 3)]
                for name, f, s in zip(names, factors, share, strict=True)
            },
        }
    return found


def summary(scored: list[Scored]) -> dict[str, Any]:
    """What the result file holds."""
    halves = {half: [one for one in scored if one.split == half] for half in ("fit", "test")}
    return {
        "aims": {"median_abs_error": WITHIN[0], "p95_abs_error": WITHIN[1]},
        "args_equal_to_the_byte": sum(one.args == one.projected.args_bytes for one in scored),
        "cases": len(scored),
        **{half: figures(members) for half, members in halves.items()},
        "test_by_strategy": by(halves["test"], lambda one: one.case.strategy),
        "test_by_remat": by(halves["test"], lambda one: one.case.remat),
    }


def of_libraries(scored: list[Scored]) -> dict[str, Any]:
    """The same of the end of libraries' products."""
    return {
        half: {"all": figures(members), **by(members, lambda one: one.case.parsed_strategy.kind)}
        for half in ("fit", "test")
        for members in [[one for one in scored if one.split == half]]
    }


def main() -> None:
    """Print the figures and write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=Path, default=RESULTS / "memory_grid.jsonl")
    parser.add_argument("--measured", type=Path, default=RESULTS / "gpu_memory.json")
    parser.add_argument("--out", type=Path, default=RESULTS / "memory_closed_form.json")
    parser.add_argument("--residuals", action="store_true")
    options = parser.parse_args()
    scored = read_lines(options.lines)
    result = {
        **summary(scored),
        "libraries": of_libraries(read_lines(RESULTS / ENDS["libraries"], "libraries")),
        "measured": read_measured(options.measured),
    }
    if options.residuals:
        print(
            json.dumps(
                residuals(one for one in scored if one.split == "fit"), indent=1, ensure_ascii=False
            )
        )
    text = json.dumps(result, indent=1, ensure_ascii=False)
    print(text)
    options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
