"""Question: does the recorded work make sense? Checks of attribution, stamps, steps and clocks."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from moeprof.columns.grouping import grouped_columns
from moeprof.columns.table import Table, isin
from moeprof.ingest.planes.left_out import FAR_AWAY, IMPOSSIBLE, REPEATED
from moeprof.ingest.trust.evidence import Evidence, Sums
from moeprof.ingest.xspace.space import Flags
from moeprof.tables.law import JAX, PYTORCH, WITHOUT_GRAPHS, Law, Need, Verdict
from moeprof.tables.trace import LOW_CONFIDENCE
from moeprof.units import format_ns, format_percent

_ENOUGH = 0.99
MOST_INTERVALS = 1.5
"""Of the time until the next one begins a step lasts at most so much, and of the median step:
devices begin and end a step apart, but a third of it does not run beside the next one."""
_OPS = {JAX: "an HLO instruction", PYTORCH: "an op of PyTorch"}
_GRAPHS = {JAX: "command buffers", PYTORCH: "CUDA graphs"}


def resolved(evidence: Evidence) -> Law:
    """How much of device time has an HLO op, and how sure that is."""
    sums = evidence.tally.sums
    total_ns = sums.self_ns
    if not total_ns:
        return Law("resolved", "warn", "no device time to resolve")
    share = sums.found_ns / total_ns
    detail = (
        f"{sums.found:,} of {sums.work:,} device events, {format_percent(share)} of device "
        f"time, resolve to {_OPS[evidence.framework]}"
    )
    if sums.by_order:
        order = format_percent(sums.by_order_ns / total_ns)
        guessed = format_percent(sums.unsure_ns / total_ns)
        detail += f"; {order} by their order in GPU graphs ({guessed} with low confidence)"
    if sums.hidden:
        detail += (
            f"; {sums.hidden:,} events ({format_percent(sums.hidden_ns / total_ns)}) "
            f"inside {_GRAPHS[evidence.framework]} are not attributed; to give each kernel its own "
            f"op, {WITHOUT_GRAPHS[evidence.framework]}"
        )
    is_good = sums.sure_ns / total_ns >= _ENOUGH
    return Law("resolved", "ok" if is_good else "warn", detail)


def sums_of(events: Table, programs: Collection[int]) -> Sums:
    """What is counted of work; `programs` are those that are there."""
    op = events["op"]
    in_buffer = op.that(lambda name: name.startswith("command_buffer"))
    is_named = (op != "") & ~in_buffer
    found = (events["instruction"] >= 0) | is_named
    by_order = found & (events["evidence"] == "graph")
    unsure = by_order & (events["confidence"] < LOW_CONFIDENCE)
    hidden = ~found & (in_buffer | _shares_its_launch(events, found))
    modules = events["module"]
    is_missing = (modules != -1) & ~isin(modules, programs)
    is_kernel = events["kind"] == "kernel"
    recorded, lasts = events["recorded_ns"], events["duration_ns"]
    self_ns = events["self_ns"]
    return Sums(
        work=len(events),
        self_ns=int(self_ns.sum()),
        in_steps_ns=int(self_ns[events["step"] != -1].sum()),
        without_program_ns=int(self_ns[is_missing].sum()),
        found=int(found.sum()),
        found_ns=int(self_ns[found].sum()),
        by_order=int(by_order.sum()),
        by_order_ns=int(self_ns[by_order].sum()),
        unsure_ns=int(self_ns[unsure].sum()),
        sure_ns=int(self_ns[found & ~unsure].sum()),
        hidden=int(hidden.sum()),
        hidden_ns=int(self_ns[hidden].sum()),
        cut=int((lasts != recorded).sum()),
        duration_ns=int(lasts.sum()),
        recorded_ns=int(recorded.sum()),
        kernels=int(is_kernel.sum()),
        instant=int((is_kernel & (recorded == 0)).sum()),
    )


def _shares_its_launch(events: Table, found: Flags) -> Flags:
    """Whether work that is not found has the launch of other work of the device: a GPU graph's."""
    ids = events["correlation_id"]
    flags: Flags = ~found & (ids >= 0)
    if flags.any():
        places = np.flatnonzero(np.isin(ids, ids[flags]))
        alike = grouped_columns(
            [events[name][places] for name in ("host", "device", "correlation_id")]
        )
        flags[places] &= (alike.size > 1)[alike.of]
    return flags


def durations(evidence: Evidence) -> Law:
    """Whether pieces on serial streams last longer than they can."""
    sums = evidence.tally.sums
    if instant := _without_length(sums):
        return instant
    ends = [one for losses in evidence.losses for one in losses.endless if one.is_cut]
    cut = sums.cut - len(ends)
    loose = "; ".join(
        f"pieces on '{line}' enclose each other all the time: lengths there are as recorded"
        for line in evidence.not_serial
    )
    if cut <= 0:
        return Law("durations", "warn" if loose else "ok", loose or "none is impossible")
    repaired_ns, raw_ns = sums.duration_ns, sums.recorded_ns
    raw_ns -= sum(one.recorded_ns - one.longest_ns for one in ends)  # those of `last_kernels`
    detail = (
        f"{cut:,} of {sums.work:,} pieces of stream work is longer than the stream allows and "
        f"was cut where the next begins: {format_ns(repaired_ns)} after repair, "
        f"{format_ns(raw_ns)} before repair"
    )
    return Law("durations", "warn", "; ".join(filter(None, (detail, loose))))


def _without_length(sums: Sums) -> Law | None:
    """Kernels that took no time are not known, and no sum with them is; starts and ends are."""
    kernels, instant = sums.kernels, sums.instant
    if not instant:
        return None
    detail = f"{instant:,} of {kernels:,} kernels have no length: what they took is not recorded"
    figures = (kernels, kernels - instant, "kernels")
    return Law("durations", "fail", detail, (Need.PIECE_TIMES,), *figures)


def time_stamps(evidence: Evidence) -> Law:
    """Whether events have stamps that cannot be, or lie far from the work."""
    impossible, far = evidence.dropped[IMPOSSIBLE], evidence.dropped[FAR_AWAY]
    if not impossible and not far:
        return Law("time_stamps", "ok", "no impossible time stamp")
    parts = [
        f"{count:,} event(s) {what}"
        for count, what in (
            (impossible, "with a start or length that cannot be"),
            (far, "far from where the work is"),
        )
        if count
    ]
    more = ", …" if impossible + far > len(evidence.outliers) else ""
    listed = f": {', '.join(evidence.outliers)}{more}" if evidence.outliers else ""
    return Law("time_stamps", "warn", f"{' and '.join(parts)}: left out{listed}")


def recorded_once(evidence: Evidence) -> Law:
    """Whether the profile holds pieces of device work twice; they count once."""
    kept, again = evidence.tally.pieces, evidence.dropped[REPEATED]
    detail = "no piece of device work is recorded twice"
    if again:
        detail = (
            f"{again:,} of {kept + again:,} pieces of device work are recorded again, alike or of "
            "the same launch, and are left out"
        )
    verdict: Verdict = "warn" if again else "ok"
    found = kept + again
    return Law("recorded_once", verdict, detail, expected=kept, found=found, unit="pieces")


def steps(evidence: Evidence) -> Law:
    """Whether steps could be measured, and are the only reading of the record."""
    used = int(evidence.steps["used"].sum())
    dropped = len(evidence.steps) - used
    is_good = used > dropped and not evidence.doubts
    detail = f"{used} step(s) measured, {dropped} dropped"
    if 0 < used < 3:
        detail += ": too few to tell noise from change"
    return Law(
        "steps",
        "ok" if is_good else "warn",
        "; ".join([detail, *evidence.doubts]),
        expected=len(evidence.steps),
        found=used,
        unit="steps",
    )


def step_order(evidence: Evidence) -> Law:
    """Whether measured steps follow each other, as their numbers do.

    Where all of them run into the next one, as stages of a pipeline may, that is the program; where
    one alone does, or one begins before an earlier one, the profile is wrong.
    """
    used = evidence.steps[evidence.steps["used"]].sorted("step")
    lasts_ns = used["duration_ns"]
    next_ns = np.append(np.diff(used["start_ns"]), np.nan)[: len(used)]
    overlaps = lasts_ns > MOST_INTERVALS * next_ns
    is_odd = lasts_ns > MOST_INTERVALS * np.median(lasts_ns) if len(used) else overlaps
    is_wrong = (next_ns <= 0) | (overlaps & is_odd)
    if not (is_wrong | overlaps).any():
        return Law("step_order", "ok", "each step begins behind the one before")
    place = int(np.flatnonzero(is_wrong if is_wrong.any() else overlaps)[0])
    later_ns = int(next_ns[place])
    lasts = (
        f"step {used['step'][place]} lasts {format_ns(int(lasts_ns[place]))}, and the next begins "
        f"{format_ns(abs(later_ns))} {'before' if later_ns < 0 else 'after'} it"
    )
    if not is_wrong.any():
        detail = f"{int(overlaps.sum())} of {len(used)} measured steps run into the next: {lasts}"
        return Law("step_order", "warn", detail)
    detail = (
        f"{int(is_wrong.sum())} of {len(used)} measured steps cannot be: {lasts}; "
        "stamps or ids in the profile are damaged"
    )
    return Law("step_order", "fail", detail, (Need.DEVICE_TIMES,))


def strays(evidence: Evidence) -> Law:
    """How much device time during steps is of no step, as it is of other programs.

    Devices are busy with it, and it counts in sums over the capture; no op or component has it.
    """
    whole_ns = evidence.tally.sums.in_steps_ns + evidence.stray_ns
    share = evidence.stray_ns / whole_ns if whole_ns else 0.0
    detail = (
        f"{format_percent(share)} of device time during steps is of no step: it counts as busy "
        "time and in the timeline, and is in no op or component of a step"
    )
    return Law("strays", "ok" if share < 0.01 else "warn", detail)
