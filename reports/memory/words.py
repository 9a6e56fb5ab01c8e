"""Question: how are the figures of a memory projection said in words?

What is shared by the text and the page. All sizes here are GiB, 2**30 bytes.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import cast

from moeprof.projector.breakdown import STEP
from moeprof.projector.framework import LEAST_PLANS, framework
from moeprof.reports.memory.document import (
    CompiledPart,
    LeverInfo,
    MemoryDocument,
    MemoryRow,
    Scalar,
)
from moeprof.reports.memory.phases import (
    GIB,
    decider,
    is_too_much_outside,
    needs_bytes,
    of_other_phase,
)
from moeprof.reports.memory.phases import gib as gib
from moeprof.reports.memory.phases import size as size
from moeprof.specs.plan import SHORT
from moeprof.units import format_percent

_FAR = 1000
"""From so many GiB above the limit on, how many does not matter."""
MARKS = {"fits": "✓", "borderline": "~", "oom": "✗", "unknown": "?"}
THEN = {
    "fits": "then fits",
    "borderline": "then borderline",
    "oom": "not enough alone",
    "unknown": "cannot be told",
}
POOLS = ("args", "temp", "outside")
POOL_TITLES = {
    "args": "Given to the step (args)",
    "temp": "Arena of the step (temp)",
    "outside": "Beside the pool (outside)",
}
CANNOT_TELL = "cannot be told"
_SHORT = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16", "float8_e4m3fn": "fp8 e4m3",
          "float8_e5m2": "fp8 e5m2"}  # fmt: skip
_KEPT = {
    "weights": "weights",
    "master": "master weights",
    "first_moment": "first moment",
    "second_moment": "second moment",
    "gradients": "gradients",
    "experts": "experts' products",
}


def billions(count: object) -> str:
    """Parameters: ``671.0 B``, below a hundred million ``64.7 M``."""
    value = float(cast(float, count))
    return f"{value / 1e9:,.1f} B" if value >= 1e8 else f"{value / 1e6:,.1f} M"


def mark(row: MemoryRow) -> str:
    """One cell of the grid: ``✓``, ``~``, ``✗+3.2`` (GiB above the limit), ``✗out``, ``?``."""
    sign = MARKS[row["verdict"]]
    over = row["over_bytes"]
    if row["verdict"] != "oom" or over is None:
        return sign
    if over <= 0:
        return f"{sign}host"
    worst = decider(row["phases"], row["largest_phase"], row["verdict"])
    if worst is not None and is_too_much_outside(worst):
        return f"{sign}out"
    value = over / GIB
    if value >= _FAR:
        return f"{sign}>{_FAR - 1}"
    return f"{sign}+{value:.1f}" if value < 9.95 else f"{sign}+{value:.0f}"


def is_outside(row: MemoryRow) -> bool:
    """Whether what lies beside the pool does not fit."""
    outside = row["outside_bytes"]
    return outside is not None and outside > row["outside_limit_bytes"]


def is_inside(row: MemoryRow) -> bool:
    """Whether what lies in the pool does not fit."""
    args, temp = row["args_bytes"], row["temp_bytes"]
    return args is not None and temp is not None and args + temp > row["pool_bytes"]


def is_of_step(row: MemoryRow) -> bool:
    """Whether the verdict is that of the step, as its error and its routing limit are."""
    phase = decider(row["phases"], row["largest_phase"], row["verdict"])
    return phase is not None and phase["name"] == STEP


def largest(document: MemoryDocument, strategy: str) -> str:
    """The largest pdbs: ``~9`` where that is borderline, ``≥ 4096`` where the search ended."""
    end = document["largest_pdbs"][strategy]
    if end is None:
        return "?"
    if end == document["largest_pdbs_tried"]:
        return f"≥ {end}"
    return str(end) if end == document["largest_pdbs_with_room"][strategy] else f"~{end}"


def group(document: MemoryDocument, name: str) -> Mapping[str, Scalar]:
    """A nested part of the inputs."""
    return cast(Mapping[str, Scalar], document["inputs"][name])


def row_at(document: MemoryDocument, strategy: str, pdbs: int | None) -> MemoryRow | None:
    """The row of one cell; None where there is none."""
    rows = document["rows"]
    return next((r for r in rows if (r["strategy"], r["pdbs"]) == (strategy, pdbs)), None)


def shown(document: MemoryDocument) -> MemoryRow:
    """The row whose account is drawn."""
    detail = document["detail"]
    row = row_at(document, detail["strategy"], detail["pdbs"])
    return document["rows"][0] if row is None else row


def strategies(document: MemoryDocument) -> list[str]:
    """Names in the order of the rows."""
    return list(dict.fromkeys(row["strategy"] for row in document["rows"]))


def batches(document: MemoryDocument) -> list[int | None]:
    """Every pdbs that some strategy was projected at, ascending."""
    found = {row["pdbs"] for row in document["rows"]}
    return sorted(found, key=lambda pdbs: pdbs or 0)


def program(inputs: Mapping[str, object]) -> str:
    """Whose program it is, and which build: ``MaxText 0.2.5``."""
    title, build = framework(str(inputs["framework"])).title, inputs["build"]
    return title if build is None else f"{title} {build}"


def model_line(document: MemoryDocument) -> str:
    """Whose program; model with its parameters, devices, sequence and what is recomputed."""
    model, hardware, inputs = (
        group(document, "model"),
        group(document, "hardware"),
        document["inputs"],
    )
    sequence = inputs["sequence"]
    parts = [
        program(inputs),
        f"{model['name']} {billions(model['parameters'])} "
        f"({billions(model['active_parameters'])} active)",
        f"{inputs['devices']} × {hardware['name']}",
        "seq not known" if sequence is None else f"seq {sequence}",
        f"remat {inputs['remat']}",
    ]
    return " · ".join(parts)


def plan_line(document: MemoryDocument) -> str:
    """Degrees above 1, number formats, optimizer."""
    plan, precision, inputs = (
        group(document, "plan"),
        group(document, "precision"),
        document["inputs"],
    )
    degrees = [f"{short} {plan[axis]}" for short, axis in SHORT.items() if plan[axis] != 1]
    if plan["pipeline"] != 1:
        degrees.append(f"{inputs['microbatches']} microbatches, {inputs['schedule']}")
    parts = [" × ".join(degrees[:8]) if degrees else "one device", formats(precision)]
    return " · ".join([*parts, str(inputs["optimizer"])])


def formats(precision: Mapping[str, Scalar]) -> str:
    """Number formats of what is kept: ``bf16 weights, moments and gradients``."""
    kinds = dict(_KEPT)
    if precision["first_moment"] == precision["second_moment"]:
        kinds = kinds | {"first_moment": "moments"}
        del kinds["second_moment"]
    by_format: dict[str, list[str]] = {}
    for field, word in kinds.items():
        dtype = precision[field]
        if dtype is not None:
            by_format.setdefault(_SHORT.get(str(dtype), str(dtype)), []).append(word)
    return ", ".join(f"{dtype} {_and(found)}" for dtype, found in by_format.items())


def _and(found: list[str]) -> str:
    return " and ".join([", ".join(found[:-1]), found[-1]]) if found[1:] else found[0]


def pool_line(document: MemoryDocument) -> str:
    """The pool, what a step is given, what is left for it."""
    row = shown(document)
    device, fraction = gib(row["device_bytes"]), document["inputs"]["mem_fraction"]
    how = f"{fraction:g} × {device}"
    if is_allocating(document):
        how = f"{device} less what others take"
    pool = f"pool {gib(row['pool_bytes'])} GiB ({how})"
    kept = [part for part in row["components"] if part["pool"] == "args"]
    has_grads = any(part["kind"] == "grads" for part in kept)
    what = "weights, gradients and optimizer" if has_grads else "weights and optimizer"
    args = row["args_bytes"]
    if args is None:
        known = sum(part["bytes"] or 0 for part in kept)
        return f"{pool} · {what} at least {gib(known)} GiB"
    left = row["pool_bytes"] - args
    end = f"left for the step {gib(left)} GiB" if left >= 0 else f"{gib(-left)} GiB too much"
    return f"{pool} · {what} {gib(args)} GiB · {end}"


def summary_lines(document: MemoryDocument) -> list[str]:
    """The cell that is shown in a sentence and how sure it is; first, where nothing fits, that."""
    ends = document["largest_pdbs"]
    row = shown(document)
    told = [verdict_line(row), certainty_line(row)]
    end, sure = ends[row["strategy"]], document["largest_pdbs_with_room"][row["strategy"]]
    if row["verdict"] == "fits" and end is not None and sure is not None and end > sure:
        told[0] += f" Borderline at pdbs {sure + 1}{f' to {end}' if end > sure + 1 else ''}."
    if ends and all(end == 0 for end in ends.values()):
        many = "None of the strategies fits" if len(ends) > 1 else "It does not fit"
        told.insert(0, f"{many}, not even with one sequence per device.")
    told[0] = f"{program(document['inputs'])}: {told[0]}"
    return told


def is_allocating(document: MemoryDocument) -> bool:
    """Whether the pool grows into all that others leave, as PyTorch's does."""
    return not framework(str(document["inputs"]["framework"])).has_pool


def verdict_line(row: MemoryRow) -> str:
    """One cell in a sentence: what it needs, of how much, and how near that is."""
    name = cell_name(row)
    args, temp, pool = row["args_bytes"], row["temp_bytes"], row["pool_bytes"]
    other = of_other_phase(row["phases"], row["largest_phase"], row["verdict"], row["host"])
    if other or args is None or temp is None:
        return f"{name}{other}" if other else f"{name}: whether it fits {CANNOT_TELL}."
    inside, most = args + temp, args + max(row["temp_range_bytes"] or [temp])
    span = gib(inside) if gib(inside) == gib(most) else f"{gib(inside)} to {gib(most)}"
    needs = f"{name} needs {span} of the pool's {gib(pool)} GiB"
    needs += "" if span == gib(inside) else ", by which kernels XLA chooses for products"
    if is_outside(row):
        beside = f"{gib(row['outside_bytes'] or 0)} of the {gib(row['outside_limit_bytes'])} GiB"
        if is_inside(row):
            return f"{needs} and {beside} beside it: out of memory in both."
        return f"{needs}, but {beside} beside it: out of memory there."
    if row["verdict"] == "oom":
        return f"{needs}: out of memory by {gib(inside - pool)} GiB."
    if row["verdict"] == "fits":
        return f"{needs}: fits, {gib(pool - most)} GiB left."
    if inside <= pool < most:
        return f"{needs}: borderline, the limit lies between."
    near, side = (most, "below") if most <= pool else (inside, "above")
    return f"{needs}: borderline, {format_percent(abs(near - pool) / pool)} {side} the limit."


def certainty_line(row: MemoryRow) -> str:
    """How far off the account is, as measured, and what that leaves open of the size."""
    error, within, library = row["error"], row["inside_range_bytes"], row["library_error"]
    band = f"±{100 * error['share']:.0f} %"
    beyond = ""
    if library and row["temp_range_bytes"]:
        beyond = f"; up to +{100 * library['share']:.0f} % where libraries compute products"
    of = "the arena" if error["of"] == "arena" else "arguments and arena"
    span = f": {gib(within[0])} to {gib(within[1])} GiB" if within else ""
    head = "Certainty" if is_of_step(row) else "Certainty of the step"
    if not error["plans"]:
        return f"{head}: not measured for such a plan; {band} of {of} is taken{beyond}{span}."
    plans = f"{error['plans']} plans" if error["plans"] > 1 else "one plan"
    alone = " alone" if error["plans"] < LEAST_PLANS else ""
    return f"{head}: {band} of {of}, measured on {plans}{alone}{beyond}{span}."


def outside_line(row: MemoryRow) -> str:
    """What lies beside the pool, against what is left there."""
    outside = row["outside_bytes"]
    if outside is None:
        return f"Beside the pool: {CANNOT_TELL}."
    state = "" if not is_outside(row) else ": too much"
    return f"Beside the pool: {gib(outside)} of {gib(row['outside_limit_bytes'])} GiB{state}."


def fraction_line(row: MemoryRow) -> str:
    """The shares of the device's memory with which both pools suffice."""
    bounds = row["mem_fraction_range"]
    if bounds is not None:
        low, high = math.ceil(1000 * bounds[0]) / 1000, math.floor(1000 * bounds[1]) / 1000
        return f"Both pools suffice with --mem-fraction from {low:.3f} to {high:.3f}."
    needs = needs_bytes(row["phases"], row["largest_phase"])
    if needs is None or needs <= row["device_bytes"]:
        return ""
    device = gib(row["device_bytes"])
    return f"No --mem-fraction helps: {gib(needs)} GiB are needed, the device has {device}."


def overload_line(row: MemoryRow) -> str:
    """Up to which imbalance of the routing it fits."""
    limit = row["fits_up_to_overload"]
    if limit is None:
        return ""
    receives = f"the fullest rank receives {limit:g} × what an even routing gives it"
    if not is_of_step(row) or is_outside(row):
        fits = f"fits up to an imbalance factor of {limit:g}: {receives}"
        even = "is above the limit even with an even routing"
        return f"In the pool the step alone {fits if limit else even}."
    if not limit and row["verdict"] == "borderline":
        return "Above the limit even with an even routing."
    if not limit:
        return "It does not fit even with an even routing."
    if row["verdict"] == "oom":
        return f"It would fit with buffers for an imbalance factor of up to {limit:g}: {receives}."
    return f"Fits up to an imbalance factor of {limit:g}: {receives}."


def limits(document: MemoryDocument, row: MemoryRow) -> list[str]:
    """What lies beside the pool, which fractions suffice, up to which routing it fits."""
    told = [outside_line(row)] if not is_allocating(document) else []
    told += [fraction_line(row)] if not is_allocating(document) else []
    return [line for line in (*told, overload_line(row)) if line]


def cell_name(row: MemoryRow) -> str:
    """``sparse-gmm at pdbs 7``."""
    return f"{row['strategy']} at pdbs {row['pdbs']}" if row["pdbs"] else row["strategy"]


def miss_title(row: MemoryRow) -> str:
    """Whose levers are told, and how far it is from its limit."""
    over = row["over_bytes"] or 0
    told = f"{gib(over)} GiB too much" if over > 0 else f"{gib(-over)} GiB below the limit"
    return f"What would help {cell_name(row)} ({told})"


def saving(lever: LeverInfo) -> str:
    """``−3.2 GiB``."""
    return f"−{gib(lever['saved_bytes'])} GiB"


def near_miss(document: MemoryDocument) -> MemoryRow | None:
    """The row whose levers are told: of the strategy that is shown, the first that may not fit."""
    strategy = shown(document)["strategy"]
    rows = [r for r in document["rows"] if r["strategy"] == strategy and r["levers"]]
    return rows[0] if rows else None


def command(document: MemoryDocument, *more: str) -> str:
    """The command that makes this document again, with more options."""
    return shlex.join(["moeprof", "memory", *document["arguments"], *more])


def compiler(row: MemoryRow) -> str:
    """Who compiled, and how long that took; empty where nobody did."""
    if "compiled" not in row:
        return ""
    info = row["compiled"]
    return f"Compiled by {info['compiler']}, {info['compile_s']:.0f} s"


def compiled_range(row: MemoryRow) -> str:
    """Between which sizes a run's arena lies, by the compiler; empty where nothing is to choose."""
    info = row.get("compiled")
    if info is None or info["temp_range_bytes"] is None or info["args_bytes"] is None:
        return ""
    (least, most), args = info["temp_range_bytes"], info["args_bytes"]
    if not info["is_temp_range_known"]:
        return f"The arena takes {size(least)} or more, by the kernels that a run chooses."
    if size(least) == size(most):
        return ""
    return (
        f"The arena takes {size(least)} to {size(most)}, by the kernels that a run chooses: "
        f"{size(args + least)} to {size(args + most)} together."
    )


def part_name(part: CompiledPart) -> str:
    """Content of buffers, and the part of the step that writes them."""
    return ", ".join(text for text in (part["content"], part["component"]) if text)


def next_steps(document: MemoryDocument) -> list[str]:
    """What to add or run next."""
    more = "Another cell: --detail STRATEGY@PDBS. A page to share: --html FILE."
    if not is_allocating(document) and "compiled" not in shown(document):
        whose = "MaxText's training" if _has_words(document) else "the bundled model's step"
        more += f" XLA's own plan of {whose}: --compile."
    search = ["moeprof", "memory", "search", *document["searched_by"]]
    return [more, f"Other plans for as many devices: {shlex.join(search)}"]


def _has_words(document: MemoryDocument) -> bool:
    """Whether the run is given in MaxText's own words, which no other command takes."""
    return any(each.partition("=")[0] in ("--maxtext", "--from") for each in document["arguments"])
