"""Pattern: devices stand still between the end of a step and the start of the next.

With asynchronous dispatch the host launches a step while the device is still at the one before, so
that nothing lies between them. A host that loads a batch, reads a loss, evaluates or saves first
comes late, and no figure of the step alone shows it.
"""

from __future__ import annotations

from moeprof.analyzers.activity.account import account_of, intervals_of
from moeprof.analyzers.gap_causes import COPY_TO_HOST, HOST_CAUSES, UNKNOWN, idle_between
from moeprof.analyzers.question import Hint, Pattern
from moeprof.tables.host_side import COMPILE, GARBAGE, INPUT, TRANSFER, WAIT
from moeprof.tables.trace import Trace
from moeprof.units import format_ns, format_percent

_SHARE = 0.05
"""Of the interval: a launch of the next step in time costs far less, even of a short step."""

_CHANGES = {
    HOST_CAUSES[INPUT]: "load batches ahead of the step, on threads of their own, and put them on "
    "the device before they are needed",
    HOST_CAUSES[TRANSFER]: "copy metrics to the host only every some steps, and those of a step "
    "that has ended; put batches on the device ahead of the step",
    COPY_TO_HOST: "copy metrics to the host only every some steps, and those of a step that has "
    "ended",
    HOST_CAUSES[WAIT]: "do not block on the result of a step before the next is launched",
    HOST_CAUSES[COMPILE]: "compile before the loop: keep shapes and static arguments as they are",
    HOST_CAUSES[GARBAGE]: "gc.freeze() and gc.disable() after the first steps, and gc.collect() "
    "every few hundred steps",
    "checkpoint": "save asynchronously, or less often",
    "evaluation": "evaluate less often, or time it apart from training",
}
_ANY = (
    "launch the next step before this one has ended: load data ahead, and wait for no result in "
    "the loop"
)


def find(trace: Trace) -> Hint | None:
    """Idle time between steps, mean over devices and intervals, with the cause of most of it."""
    table = intervals_of(account_of(trace))
    whole_ns = int(table["interval_ns"].sum())
    if not whole_ns:
        return None
    share = table["between_idle_ns"].sum() / whole_ns
    if share < _SHARE:
        return None
    idle_ns = float(table["between_idle_ns"].mean())
    main = idle_between(trace)[:1].dicts()[0]
    cause = main["cause"]
    told = "its cause is not known" if cause == UNKNOWN else f"most of it by: {cause}"
    return Hint(
        f"devices stand still for {format_ns(idle_ns)} between the end of a step and the start of "
        f"the next, {format_percent(share)} of the {format_ns(float(table['interval_ns'].mean()))} "
        f"from start to start; {told} (longest: {format_ns(main['longest_ns'])} after step "
        f"{main['step']})",
        _CHANGES.get(cause, _ANY),
        "step_time",
        gain_ns=idle_ns,
    )


PATTERN = Pattern("idle_between_steps", "Devices stand still between steps", 2, find)
