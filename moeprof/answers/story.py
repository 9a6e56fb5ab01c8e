"""Question: what does a document say of the step in a few words: how long is it, and where does
it go?

Sentences and figures take these; nothing here is computed from anything but the document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from moeprof.answers.document import Document, MetricInfo, headline, is_unrecorded, rows
from moeprof.answers.values import is_number, printable
from moeprof.tables.analysis import Basis
from moeprof.units import format_count, format_ns, format_percent

NAME_WIDTH = 60
"""Where a name stands in a sentence or heading, it is cut to this many characters."""

PER: dict[Basis, str] = {
    "step": "per device and step",
    "capture": "per device over the whole capture",
}
"""What times are taken over, in words."""

_SPELLED = {
    "gemm": "GEMM", "mlp": "MLP", "moe": "MoE", "mfu": "MFU", "hfu": "HFU", "flops": "FLOPs",
}  # fmt: skip

_CALLED = {
    "between_idle": "idle between steps",
    "between_other": "other work between",
    "tokens_per_second_device": "tokens per second and device",
    "step_tokens_per_second_device": "tokens per second of device work and device",
}

INTERVAL_PARTS = {
    "interval_compute": "compute",
    "interval_exposed_communication": "exposed communication",
    "interval_exposed_copy": "exposed copies",
    "interval_idle": "idle",
    "between_other": "other work between steps",
    "between_idle": "idle between steps",
}
"""Metrics of `step_time` that add up to the mean interval, as they are called."""
_FEW_PROGRAMS = 3

MFU_IS = "model FLOPs without recompute, of the dense bf16 peak"
"""The convention of `mfu` and `interval_mfu`, in words."""


@dataclass(frozen=True)
class StepTime:
    """Durations of the steps that figures are taken from."""

    median_ns: float
    least_ns: int
    most_ns: int
    used: int
    found: int


@dataclass(frozen=True)
class Interval:
    """From the start of a used step to the start of the next."""

    mean_ns: float
    least_ns: float
    most_ns: float
    count: int


@dataclass(frozen=True)
class Part:
    """One component's time per step, and its share of all parts together."""

    component: str
    duration_ns: float
    share: float


def step_time(document: Document) -> StepTime | None:
    """Median, least and most of the used steps; None where no step can be used."""
    import statistics

    used = [step["duration_ns"] for step in document["steps"] if step["used"]]
    if not used:
        return None
    return StepTime(
        statistics.median(used), min(used), max(used), len(used), len(document["steps"])
    )


def interval(document: Document) -> Interval | None:
    """The mean interval, least and most; None where no used step is followed by another."""
    import statistics

    found = [ns for step in document["steps"] if (ns := step.get("interval_ns")) is not None]
    if not found:
        return None
    mean = headline(document, "step_time").get("interval_mean")
    mean_ns = float(mean) if isinstance(mean, int | float) else statistics.fmean(found)
    return Interval(mean_ns, min(found), max(found), len(found))


def described_interval(document: Document) -> str:
    """``mean of 7 intervals, 9.8 ms to 10.4 ms``; empty where none is known."""
    found = interval(document)
    if found is None:
        return ""
    if found.count == 1:
        return "one interval: no spread known"
    least, most = format_ns(found.least_ns), format_ns(found.most_ns)
    return f"mean of {found.count} intervals, {least} to {most}"


def parts(document: Document) -> list[Part]:
    """Time per component, phases added up, largest first; empty without a breakdown."""
    totals = phase_totals(document)
    sums: dict[str, float] = {}
    for (component, _phase), duration_ns in totals.items():
        sums[component] = sums.get(component, 0.0) + duration_ns
    whole = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return [Part(name, ns, ns / whole if whole else 0.0) for name, ns in ordered]


def phase_totals(document: Document) -> dict[tuple[str, str], float]:
    """Nanoseconds per step by (component, phase), as the breakdown's rows give them."""
    totals: dict[tuple[str, str], float] = {}
    for row in rows(document, "breakdown"):
        duration_ns = row.get("per_step_ns")
        if isinstance(duration_ns, int | float):
            key = (str(row["component"]), str(row["phase"]))
            totals[key] = totals.get(key, 0.0) + duration_ns
    return totals


def described_step(document: Document) -> str:
    """The step time in words: the mean interval where one is known, then its device work.

    Where there is none, why.
    """
    time = step_time(document)
    if time is None:
        return f"not known: {described_spread(document)}"
    work = f"{format_ns(time.median_ns)} ({described_spread(document)})"
    found = interval(document)
    if found is None:
        return work
    return (
        f"{format_ns(found.mean_ns)} from start to start ({described_interval(document)}); first "
        f"to last device work of a step: {work}"
    )


def described_rate(document: Document) -> str:
    """``60,830 tokens/s/device · MFU 31.0 % (…) · 2.1 % of (token, expert) pairs dropped``.

    Each where it is known, over the interval; over the step's device work where none is known, and
    so it says. Empty where nothing is known.
    """
    over = "interval_" if interval(document) else ""
    timed = list(filter(None, (_token_rate(document, over), _mfu(document, over))))
    if timed and not over:
        timed[0] = f"by the device work of a step: {timed[0]}"
    return " · ".join([*timed, *filter(None, [_dropped(document)])])


def _token_rate(document: Document, over: str) -> str:
    of = "" if over else "step_"
    rate = headline(document, "step_time").get(f"{of}tokens_per_second_device")
    return f"{format_count(round(rate))} tokens/s/device" if is_number(rate) else ""


def _mfu(document: Document, over: str) -> str:
    found = headline(document, "roofline")
    exact, most = (found.get(f"{over}{name}") for name in ("mfu", "mfu_at_most"))
    if is_number(exact):
        return f"MFU {format_percent(exact)} ({MFU_IS})"
    return f"MFU at most {format_percent(most)} ({MFU_IS})" if is_number(most) else ""


def _dropped(document: Document) -> str:
    """The part of what routers chose that no slot took; a bound of nothing says nothing."""
    found = headline(document, "expert_load")
    exact, least = (found.get(name) for name in ("dropped_share", "dropped_share_at_least"))
    if is_number(exact):
        share = f"{format_percent(exact)} of (token, expert) pairs"
        return f"{share if exact else 'no (token, expert) pair'} dropped"
    if is_number(least) and least > 0:
        return f"at least {format_percent(least)} of (token, expert) pairs dropped"
    return ""


def described_spread(document: Document) -> str:
    """How the step time was taken, or why there is none."""
    time = step_time(document)
    found = len(document["steps"])
    if is_unrecorded(document):
        return "the run ended before its profile was written"
    if time is None:
        return f"none of the {found} steps found can be used" if found else "no step was found"
    if time.used == 1:
        return "one step: no spread known"
    return f"median of {time.used} steps, {format_ns(time.least_ns)} to {format_ns(time.most_ns)}"


def metric_name(metric: MetricInfo) -> str:
    """The name of a headline figure as read by people."""
    return label(metric["metric"])


def described_parts(document: Document) -> str:
    """What the parts are parts of; empty without a breakdown."""
    found = parts(document)
    if not found:
        return ""
    whole_ns = sum(part.duration_ns for part in found)
    return f"of {format_ns(whole_ns)} op time {basis(document)}"


def basis(*documents: Document) -> str:
    """What times are taken over; of several runs every basis that one has."""
    each = (finding for document in documents for finding in document["analyses"].values())
    found = [PER[finding.get("basis", "step")] for finding in each]
    return " or ".join(dict.fromkeys(found)) or PER["step"]


def count_of(number: int) -> str:
    """``1 row``, ``12 rows``."""
    return f"{format_count(number)} row{'' if number == 1 else 's'}"


def label(name: str) -> str:
    """A component's or metric's name as read by people: ``grouped_gemm`` is "grouped GEMM"."""
    if name in _CALLED:
        return _CALLED[name]
    words = printable(name.replace("_", " ")).split(" ")
    return " ".join(_SPELLED.get(word, word) for word in words) or "(no name)"


def run_labels(documents: Sequence[Document]) -> list[str]:
    """The shortest end of each run's path that tells it from the others."""
    paths = [PurePath(document["run"]["path"]) for document in documents]
    longest = max((len(path.parts) for path in paths), default=0)
    for depth in range(1, longest + 1):
        labels = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(labels)) == len(labels):
            return [printable(text) for text in labels]
    return [printable(f"{path} ({place})") for place, path in enumerate(paths, start=1)]


def described_interval_parts(document: Document) -> str:
    """``compute 7.5 ms · idle between steps 2.5 ms``: what adds up to the mean interval."""
    found = headline(document, "step_time")
    named = [
        f"{name} {format_ns(float(ns))}"
        for metric, name in INTERVAL_PARTS.items()
        if isinstance(ns := found.get(metric), int | float) and ns
    ]
    return " · ".join(named)


def described_outside(document: Document) -> str:
    """``outside of every step: 21.1 % of device time (jit_apply)``; empty where there is none."""
    found = headline(document, "step_time")
    share, names = found.get("outside_share"), str(found.get("outside_programs") or "").split(", ")
    if not isinstance(share, float) or not share:
        return ""
    more = f" and {len(names) - _FEW_PROGRAMS} more" if len(names) > _FEW_PROGRAMS else ""
    told = ", ".join(printable(name) for name in names[:_FEW_PROGRAMS])
    return f"outside of every step: {format_percent(share)} of device time ({told}{more})"
