"""Question: how far is the step-time estimate from published throughputs, and is the order right?

    python benchmarks/step_time.py [--check]

benchmarks/data/step_time.csv has runs with what was measured. Rates of AMD devices were taken from
the family marked ``fitted`` (moeprof/projector/step_time/rates.py says which); nothing was fitted
to the others. What NVIDIA's recipes do about CUDA graphs, dispatcher and recomputation is not
stated row by row: DeepEP is assumed. The bundled model's own steps on two H200 are those of
benchmarks/results/gpu_memory.json, less what its note and `_left_out` rule out. Writes
benchmarks/results/step_time.json; --check only compares it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import statistics
import sys
import time
from pathlib import Path

from moeprof.projector.search import search
from moeprof.projector.search.space import Space
from moeprof.projector.setting import Precision, Setting
from moeprof.projector.step_time import estimate
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import MlaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.presets import load_preset
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import parse_strategy

FOLDER = Path(__file__).parent
DATA = FOLDER / "data" / "step_time.csv"
GPUS = FOLDER / "results" / "gpu_memory.json"
RESULT = FOLDER / "results" / "step_time.json"
_DEGREES = ("data", "fsdp", "expert", "tensor", "pipeline", "virtual")


def read() -> list[dict[str, str]]:
    """The published runs."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def setting_of(row: dict[str, str]) -> Setting:
    """The run that a row describes."""
    degrees = {name: int(row[name]) for name in _DEGREES}
    return Setting(
        model=load_preset(row["model"]),
        plan=ParallelPlan(**degrees, remat=Remat(row["remat"])),  # type: ignore[arg-type]
        strategy=parse_strategy(row["strategy"]),
        hardware=load_hardware(row["hardware"]),
        sequence=int(row["sequence"]),
        pdbs=int(row["pdbs"]),
        microbatches=int(row["microbatches"]),
        framework=row["world"],
        precision=Precision(experts=row["experts_dtype"] or None),
    )


def own_runs() -> list[tuple[str, Setting, float]]:
    """Name, setting and tokens/s/device of the bundled model's steps on two H200."""
    document = json.loads(GPUS.read_text(encoding="utf-8"))
    widths = dict(document["model"])
    mla = MlaSpec(**widths.pop("attention")["mla"])
    model, expert = ModelSpec(attention=mla, **widths), document["expert"]
    out = []
    for number, case in enumerate(document["cases"]):
        if _left_out(number, case):
            continue
        devices = len(case["pool_bytes"])
        setting = Setting(
            model=model,
            plan=ParallelPlan(fsdp=devices // expert, expert=expert, remat=Remat(case["remat"])),
            strategy=parse_strategy(case["strategy"]),
            hardware=load_hardware("h200_sxm"),
            sequence=document["sequence"],
            pdbs=case["pdbs"],
            framework="bundled",
        )
        name = f"bundled model 2 h200_sxm {case['strategy']} pdbs {case['pdbs']}"
        tokens = case["pdbs"] * document["sequence"]
        out.append((name, setting, tokens / case["step_s"][-1]))
    return out


def _left_out(number: int, case: dict[str, object]) -> bool:
    """Seven cases ran beside compilations; grouped_gemm had no kernel of its own on that GPU."""
    return number < 7 or "step_s" not in case or case["strategy"] == "sparse-gmm"


def scored() -> list[dict[str, object]]:
    """Every row with its estimate; error relative to what was measured."""
    out: list[dict[str, object]] = []
    for name, setting, speed in own_runs():
        projected = estimate(setting).tokens_per_s_per_device
        out.append(_score("moeprof_bundled_h200", name, speed, projected))
    for row in read():
        found = estimate(setting_of(row))
        if row["bubble"]:
            measured, projected = float(row["bubble"]), found.bubble
        else:
            measured, projected = (
                float(row["tokens_per_s_per_device"]),
                found.tokens_per_s_per_device,
            )
        name = f"{row['model']} {row['hardware']} {row['strategy']} pdbs {row['pdbs']}"
        if row["world"] == "megatron":
            name += f" ep {row['expert']} pp {row['pipeline']} vpp {row['virtual']}"
            name += " fp8" if row["experts_dtype"] else ""
        out.append(_score(row["family"], name, measured, projected, is_share=bool(row["bubble"])))
    return out


def _score(
    family: str, run: str, measured: float, projected: float, *, is_share: bool = False
) -> dict[str, object]:
    digits = 4 if is_share else 1
    return {
        "family": family,
        "run": run,
        "unit": "share" if is_share else "tokens/s/device",
        "measured": round(measured, digits),
        "projected": round(projected, digits),
        "error": round(projected / measured - 1, 4),
    }


def bands() -> dict[str, list[float]]:
    """What `moeprof.projector.step_time` gives as bands, by its names.

    Measured over estimated seconds, ends rounded outwards to a tenth: of all fitted rows; of four
    in five of each family that nothing was fitted to (none is faster by more than a hundredth); and
    of one row over another of the same framework and device, all pairs.
    """
    rows = [("moeprof_bundled_h200", setting, speed) for _, setting, speed in own_runs()]
    rows += [
        (row["family"], setting_of(row), float(row["tokens_per_s_per_device"]))
        for row in read()
        if not row["bubble"]
    ]
    ratios = [
        (family, setting, estimate(setting).tokens_per_s_per_device / speed)
        for family, setting, speed in rows
    ]
    fitted = [ratio for _, setting, ratio in ratios if estimate(setting).basis.ranks]
    others: dict[str, list[float]] = {}
    for family, setting, ratio in ratios:
        if not estimate(setting).basis.ranks:
            others.setdefault(family, []).append(ratio)
    pairs: dict[str, list[float]] = {"SAME_STRATEGY": [], "OTHER_STRATEGY": [], "OTHER_PLAN": []}
    for (_, one, here), (_, other, there) in itertools.permutations(ratios, 2):
        if (one.framework, one.hardware) == (other.framework, other.hardware):
            pairs[_likeness(one, other)].append(there / here)
    four_in_five = [sorted(found)[math.ceil(0.8 * len(found)) - 1] for found in others.values()]
    slow = [round(min(map(min, others.values())), 2), max(four_in_five)]
    found = {"MEASURED": fitted, "ASSUMED": slow, **pairs}
    return {name: _outwards(values) for name, values in found.items()}


def _likeness(one: Setting, other: Setting) -> str:
    if one.model != other.model:
        return "OTHER_PLAN"
    alike = (one.strategy, one.plan.remat) == (other.strategy, other.plan.remat)
    return "SAME_STRATEGY" if alike else "OTHER_STRATEGY"


def _outwards(values: list[float]) -> list[float]:
    return [math.floor(10 * min(values)) / 10, math.ceil(10 * max(values)) / 10]


def order_errors(family: str) -> tuple[int, int]:
    """Pairs of strategies at the same batch: how many come out in the wrong order, of how many."""
    rows = [row for row in read() if row["family"] == family]
    wrong = pairs = 0
    for one, other in itertools.combinations(rows, 2):
        if one["pdbs"] != other["pdbs"]:
            continue
        speeds = [estimate(setting_of(row)).tokens_per_s_per_device for row in (one, other)]
        measured = [float(row["tokens_per_s_per_device"]) for row in (one, other)]
        pairs += 1
        wrong += (speeds[0] < speeds[1]) != (measured[0] < measured[1])
    return wrong, pairs


def summary(rows: list[dict[str, object]]) -> dict[str, dict[str, float | int]]:
    """Per family: median and largest absolute error, median signed error."""
    out: dict[str, dict[str, float | int]] = {}
    for family in dict.fromkeys(str(row["family"]) for row in rows):
        errors = [float(row["error"]) for row in rows if row["family"] == family]  # type: ignore[arg-type]
        out[family] = {
            "rows": len(errors),
            "median_absolute_error": round(statistics.median(map(abs, errors)), 4),
            "largest_absolute_error": round(max(map(abs, errors)), 4),
            "median_error": round(statistics.median(errors), 4),
        }
    wrong, pairs = order_errors("amd_maxtext_deepseek_v3")
    out["amd_maxtext_deepseek_v3"] |= {"pairs": pairs, "pairs_in_the_wrong_order": wrong}
    return out


def search_speed() -> dict[str, float | int]:
    """Seconds for all plans of MoE-1T on 768 MI355X, and how many of them were projected.

    Of a busy machine the processor's seconds say more.
    """
    base = Setting(
        load_preset("moe_1t"),
        ParallelPlan(),
        parse_strategy("sparse-gmm-deepep"),
        load_hardware("mi355x"),
        framework="megatron",
    )
    policies = (Remat("none"), Remat("full"))
    area = Space(base, 768, (base.strategy,), policies, global_batch=15_360, pdbs=1)
    start, work = time.perf_counter(), time.process_time()
    result = search(area)
    seconds, work = time.perf_counter() - start, time.process_time() - work
    broken = ("divide", "peers")
    illegal = sum(n for reason, n in result.rejected if any(word in reason for word in broken))
    return {
        "plans": result.considered,
        "projected": result.considered - illegal,
        "seconds": round(seconds, 2),
        "processor_seconds": round(work, 2),
    }


def main() -> None:
    """Score, print, and write or check the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    rows = scored()
    families = summary(rows)
    for row in rows:
        print(
            f"{row['run']:62} {row['measured']:>9} {row['projected']:>9} "
            f"{100 * float(row['error']):+6.1f} %"  # type: ignore[arg-type]
        )
    print(json.dumps(families, indent=1))
    if is_check:
        known = json.loads(RESULT.read_text(encoding="utf-8"))
        is_same = known["rows"] == rows and known["families"] == families
        if not is_same or known["bands"] != bands():
            sys.exit(f"{RESULT} is not what this code gives: run without --check.")
        return
    speed = search_speed()
    print(speed)
    document = {"schema": "moeprof.step_time_benchmark/1", "families": families, "bands": bands(),
                "rows": rows, "search": speed}  # fmt: skip
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
