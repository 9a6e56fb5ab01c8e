"""Question: how close does each op come to what the device can do, and what bounds it?

Returns: one row per component, then one per op of the largest, the most expensive first.

An op's FLOPs are those of its matrix products, convolutions and attention, once per execution
however many kernels it takes; its bytes are operands and results once, at the least. Of the
experts' grouped products both are those of the rows that held tokens, as no others are multiplied:
not known where the run recorded no routing. Intensity is FLOPs / bytes. Its time on an ideal device
is max(FLOPs / peak of the operands' element type, bytes / memory bandwidth), whichever is larger
bounds it; achieved rates are by its self time.

MFU is model FLOPs per step ÷ (step time × peak in bf16). Model FLOPs are those of products that the
forward and backward pass ask for: recomputed ones are left out, as is Q·Kᵀ that a library's
attention computes again on its way back; of a causal mask half counts where a library's call states
the mask, and what a dense product spends on other experts' rows is left out. HFU counts all FLOPs
that run. Both are per device and over the whole step, idle time too. Interval MFU is the same from
the start of a step to the start of the next, which holds what lies between steps, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moeprof.analyzers.activity.account import mean_interval_ns
from moeprof.analyzers.attribution import classes_of, window_sums
from moeprof.analyzers.costs.grouped import ModelFlops, costs_that_run, model_flops
from moeprof.analyzers.costs.table import costs_of
from moeprof.analyzers.figures import roofline as roofline_figures
from moeprof.analyzers.question import Group, Picture, Question, Taken
from moeprof.analyzers.window import PER_STEP, Window, hardware_in, window
from moeprof.answers.document import Document, Value, headline
from moeprof.answers.story import basis
from moeprof.answers.values import written
from moeprof.columns.coded import Flags
from moeprof.columns.grouping import grouped, places_in
from moeprof.columns.table import Table
from moeprof.specs.hardware import HardwareSpec, load_hardware
from moeprof.tables.analysis import Analysis, Metric, Status
from moeprof.tables.law import Need
from moeprof.tables.once import once
from moeprof.tables.schema import Column, Schema
from moeprof.tables.trace import Trace
from moeprof.units import format_percent

Float64s = npt.NDArray[np.float64]

SCHEMA = Schema(
    "roofline",
    (
        Column("component", "text", "", "part of the step"),
        Column("op", "text", "", "HLO instruction; empty for a whole component"),
        Column("phase", "text", "", "forward, recompute, backward or other; empty for a component"),
        Column("kind", "text", "", "what is computed; empty for a component"),
        Column("dtype", "text", "", "element type of the operands; empty where none is multiplied"),
        Column("per_step_ns", "float64", "ns", f"self time, {PER_STEP}"),
        Column("calls", "float64", "count", f"executions, {PER_STEP}"),
        Column("flops", "float64", "FLOP", f"matrix FLOPs, {PER_STEP}"),
        Column("bytes", "float64", "bytes", f"memory traffic at the least, {PER_STEP}"),
        Column("intensity", "float64", "FLOP/byte", "FLOPs by bytes"),
        Column("tflop_per_s", "float64", "TFLOP/s", "achieved", "TFLOP/s"),
        Column("tb_per_s", "float64", "TB/s", "achieved, at the least", "TB/s"),
        Column("bound", "text", "", "compute or memory, by the roofline; empty where not known"),
        Column("compute_share", "float64", "share", "of the peak of its element type"),
        Column("memory_share", "float64", "share", "of memory bandwidth; caches may give more"),
        Column("roofline_ns", "float64", "ns", f"time at the roofline, {PER_STEP}"),
        Column("module", "int64", "", "program id; -1 for a component"),
    ),
)
ASKS = "How close does each op come to what the device can do?"
MOST_ROWS = 50
_LEAST_COVERED = 0.99
"""No sum of FLOPs over the step where ops of more time than the rest might multiply anything."""

_OF_INTERVALS = ("interval_mfu", "interval_mfu_at_most")
_OF_THE_STEP = ("mfu", "mfu_at_most", "hfu")
"""What divides by the length of a step, which says nothing with clocks that differ."""
_OF_ROWS = (
    *("model_flops", "model_flops_at_most", "hardware_flops", "roofline_time"),
    *(*_OF_THE_STEP, *_OF_INTERVALS),
    *("flops", "bytes", "intensity", "tflop_per_s", "tb_per_s", "bound"),
    *("compute_share", "memory_share", "roofline_ns"),
)
"""What the rows of the experts' products make, of which recorded routing tells how many are used.

Each is a sum that may hold such a product, or of an op that may be one."""
_OF_PROGRAMS = ("kind", "dtype", "covered_share")
"""What programs tell besides."""


def roofline(trace: Trace) -> Analysis:
    """Components and the `MOST_ROWS` most expensive ops of the used steps against the roofline."""
    view, spec = window(trace), hardware_in(trace)
    ops = ops_by_time(trace)
    parts = _with_rates(_components(ops), spec)
    schema = view.stated(SCHEMA)
    both = (parts, ops[:MOST_ROWS])
    shown = {name: [cell for of in both for cell in of[name].tolist()] for name in schema.names}
    table = schema.table(shown)
    asked = model_flops(trace)
    headline = _headline(trace, view, ops, asked, spec)
    is_known = any(m.metric == "hardware_flops" and m.value is not None for m in headline)
    status: Status = "ok" if is_known else "not_known"
    notes = _notes(trace, ops, spec, view, asked)
    return Analysis("roofline", ASKS, headline, schema, table, notes, status=status)


@once  # the drawing asks again
def ops_by_time(trace: Trace) -> Table:
    """Every op of the used steps with the columns of `SCHEMA`, the most expensive first."""
    view, spec = window(trace), hardware_in(trace)
    return _with_rates(_measured(trace, costs_that_run(trace), view, spec), spec)


def _measured(trace: Trace, costs: Table, view: Window, spec: HardwareSpec | None) -> Table:
    """Costs per device and step, and the time at the roofline of each op."""
    peak_of = {dtype: _peak(spec, dtype) for dtype in set(costs["dtype"].tolist())}
    sent, counted = classes_of(trace), costs_of(trace)
    sent = sent[sent["is_collective"]]
    counted = counted[places_in(costs, counted, "module", "op")]
    # what crosses a link is bound by that, of which the memory's bandwidth says nothing
    is_sent = (places_in(costs, sent, "module", "op") >= 0) | (costs["kind"] == "exchange")
    table = costs.assign(
        is_sent=is_sent,
        is_counted=~np.isnan(counted["flops"]),
        is_sized=~np.isnan(counted["bytes"]) | np.isnan(counted["flops"]),
        per_step_ns=costs["self_ns"] / view.shares,
        calls=costs["runs"] / view.shares,
        flops=costs["flops"] * costs["runs"] / view.shares,
        bytes=costs["bytes"] * costs["runs"] / view.shares,
        peak=np.array([peak_of[dtype] for dtype in costs["dtype"].tolist()], np.float64),
    )
    computing = np.where(table["flops"] != 0, table["flops"] / table["peak"], 0.0) * 1e9
    moving = table["bytes"] / (spec.hbm_bytes_per_s if spec else np.nan) * 1e9
    is_known = ~np.isnan(computing) & ~np.isnan(moving) & ~is_sent
    longer = np.where(computing > moving, computing, moving)
    bound = np.where(computing > moving, "compute", "memory").astype(object)
    return table.assign(
        roofline_ns=np.where(is_known, longer, np.nan),
        bound=np.where(is_known & (longer > 0), bound, ""),
    ).sorted("per_step_ns", "op", falling=["per_step_ns"])


def _peak(spec: HardwareSpec | None, dtype: str) -> float:
    """FLOP/s of a device for an element type; NaN where that is not known."""
    found = spec.flops_per_s(dtype) if spec else None
    return np.nan if found is None else found


def _components(ops: Table) -> Table:
    """Sums by component; a sum is not known where one of its ops is not."""
    groups = grouped(ops, "component", is_sorted=False)
    names = ("per_step_ns", "calls", "flops", "bytes", "roofline_ns")
    sums = Table({name: groups.sum(ops[name]) for name in names})
    kinds = [sorted(set(ops["dtype"][rows].tolist()) - {""}) for rows in groups.rows()]
    dtypes = [found[0] if len(found) == 1 else "" for found in kinds]
    peak_of = dict(reversed(list(ops.rows("dtype", "peak"))))
    texts = {name: [""] * len(groups) for name in ("op", "phase", "kind", "bound")}
    largest = len(sums) - 1 - np.argsort(sums["per_step_ns"][::-1])[::-1]
    parts: Table = sums.assign(
        component=ops["component"][groups.first],
        dtype=dtypes,
        peak=np.array([peak_of.get(dtype, np.nan) for dtype in dtypes], np.float64),
        is_sent=groups.any(ops["is_sent"]),
        module=-1,
        **texts,
    )[largest]
    return parts


def _with_rates(table: Table, spec: HardwareSpec | None) -> Table:
    seconds, flops = _where(table["per_step_ns"] > 0, table["per_step_ns"]) / 1e9, table["flops"]
    flops = _where(flops != 0, flops)
    memory = spec.hbm_bytes_per_s if spec else np.nan
    return table.assign(
        intensity=table["flops"] / _where(table["bytes"] > 0, table["bytes"]),
        tflop_per_s=flops / seconds / 1e12,
        tb_per_s=table["bytes"] / seconds / 1e12,
        compute_share=flops / seconds / table["peak"],
        memory_share=_where(~table["is_sent"], table["bytes"] / seconds / memory),
    )


def _where(flags: Flags, values: Float64s) -> Float64s:
    """Values where the flags are; else NaN."""
    return np.where(flags, values, np.nan)


def _headline(
    trace: Trace, view: Window, ops: Table, asked: ModelFlops, spec: HardwareSpec | None
) -> tuple[Metric, ...]:
    covered = _covered(trace, view, ops)
    is_covered = covered is not None and covered >= _LEAST_COVERED
    run = _known(ops["flops"].sum()) if is_covered else None
    most = _known(asked.flops / view.shares) if is_covered else None
    model = most if asked.is_exact else None
    steps = trace.table("steps")
    used_ns = steps["duration_ns"][steps["used"]]
    seconds = float(used_ns.mean()) / 1e9 if view.steps else None
    possible = seconds * spec.bf16_flops_per_s if seconds and spec else None
    between = (mean_interval_ns(trace) or 0.0) / 1e9
    in_interval = between * spec.bf16_flops_per_s if spec else None
    is_here = (ops["bound"] != "") | ((ops["bytes"] > 0) | ~ops["is_sized"]) & ~ops["is_sent"]
    is_whole = is_covered and is_here.any()
    at_best = _known(ops["roofline_ns"][is_here].sum()) if is_whole else None
    return (
        Metric("model_flops", model, "FLOP"),
        Metric("model_flops_at_most", most, "FLOP"),
        Metric("hardware_flops", run, "FLOP"),
        Metric("mfu", _share(model, possible), "share"),
        Metric("mfu_at_most", _share(most, possible), "share"),
        Metric("hfu", _share(run, possible), "share"),
        Metric("roofline_time", at_best, "ns"),
        Metric("covered_share", covered, "share"),
        Metric("hardware", spec.key if spec else None, ""),
        Metric("interval_mfu", _share(model, in_interval), "share"),
        Metric("interval_mfu_at_most", _share(most, in_interval), "share"),
    )


def _covered(trace: Trace, view: Window, ops: Table) -> float | None:
    """The part of ops whose FLOPs are known, of the time that may have any; None without work.

    Copies and memory sets of no known op have none.
    """
    sums = window_sums(trace)
    whole = sums.self_ns - sums.moved_ns
    known = float(ops["per_step_ns"][ops["is_counted"]].sum()) * view.shares
    return min(known / whole, 1.0) if whole else None


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _notes(
    trace: Trace,
    ops: Table,
    spec: HardwareSpec | None,
    view: Window,
    asked: ModelFlops,
) -> tuple[str, ...]:
    if not len(ops):
        return ("none in this trace: no device work whose program is known", *view.notes)
    notes = [
        "FLOPs are those of products, convolutions and attention, per device and step; model FLOPs "
        "leave out what is recomputed, hardware FLOPs count all that runs"
    ]
    covered = _covered(trace, view, ops)
    if covered is not None and covered < _LEAST_COVERED:
        notes.append(
            f"FLOPs are known for ops of {format_percent(covered)} of the time: too few for a sum "
            "over the step"
        )
    if not asked.is_exact:
        is_told = len(trace.table("routing")) or len(trace.table("received"))
        why = "is not known of these" if is_told else "was not recorded (moeprof.routing)"
        notes.append(
            "MFU is not known: the experts' products make room for more rows than tokens chose, "
            f"and how many did {why}, or a capacity cut them off; mfu_at_most counts every row"
        )
    if spec is None:
        notes.append(
            "the profile names no device that is known: no share of a peak; name one with "
            "--hardware (`moeprof hardware` lists them)"
        )
    else:
        notes.append(f"peaks of {spec.name}: {spec.source} (confidence {spec.confidence})")
    unread = ops["op"][np.isnan(ops["flops"])]
    if len(unread):
        notes.append(
            f"{len(unread)} op(s) whose FLOPs nothing states, as {unread[0]}: no sum of "
            "FLOPs over the step"
        )
    peakless = ops["dtype"][np.isnan(ops["peak"]) & (ops["flops"] > 0)]
    if spec is not None and len(peakless):
        kinds = ", ".join(sorted(set(peakless.tolist())))
        notes.append(
            f"no peak is stated for {kinds}: {len(peakless)} op(s) have no share and no bound, and "
            "the step no roofline time"
        )
    if (ops["kind"] == "causal attention").any():
        notes.append("attention under a causal mask: half of its products counts")
    if ((ops["kind"] == "gemm") & (ops["component"] == "attention")).any():
        notes.append("attention written as products counts whole: it computes what it masks")
    if spec is not None and (ops["memory_share"] > 1).any():
        notes.append("a memory share above 100 % is data that the caches gave")
    return (*notes, *view.notes)


def sentence(document: Document) -> str:
    """MFU and HFU where the device is known, else the FLOPs that ran."""
    found = headline(document, "roofline")
    if found.get("hardware_flops") is None:
        return ""
    ran = f"{written(found['hardware_flops'], 'FLOP')} {basis(document)}"
    if found["hfu"] is None:
        return f"{ran} ran; their share of a peak is not known, as the notes say."
    device = load_hardware(str(found["hardware"])).name
    of_model = _told(found["mfu"], found["mfu_at_most"]) or "is not known"
    told = f"MFU {of_model} on {device}, HFU {written(found['hfu'], 'share')}, from {ran}."
    between = _told(found.get("interval_mfu"), found.get("interval_mfu_at_most"))
    return (
        f"{told} From the start of a step to that of the next MFU {between}." if between else told
    )


def _told(exact: Value, most: Value) -> str:
    if exact is not None:
        return f"is {written(exact, 'share')}"
    return f"is at most {written(most, 'share')}" if most is not None else ""


QUESTION = Question(
    title="Roofline",
    group=Group.DEVICES,
    place=1,
    asks=ASKS,
    needs=frozenset({Need.DEVICE_TIMES, Need.PIECE_TIMES, Need.NESTING}),
    schema=SCHEMA,
    run=roofline,
    sentence=sentence,
    figures=(
        Picture(roofline_figures.ROOFS, roofline_figures.roofline),
        Picture(roofline_figures.BEYOND, roofline_figures.roof_time),
    ),
    taken=(
        Taken(_OF_INTERVALS, question="step_time"),
        Taken(_OF_THE_STEP, needs=frozenset({Need.DEVICE_CLOCKS, Need.WHOLE_STEPS})),
        Taken((*_OF_ROWS, *_OF_PROGRAMS), needs=frozenset({Need.PROGRAMS, Need.PROGRAMS_THAT_RAN})),
        Taken(_OF_ROWS, needs=frozenset({Need.ROUTING, Need.RECEIVED})),
    ),
)
