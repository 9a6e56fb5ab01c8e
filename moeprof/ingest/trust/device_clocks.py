"""Do the devices of a host stamp by one clock? Judged by ends of collectives."""

from __future__ import annotations

from moeprof.ingest.planes.record import NO_DEVICE_CLOCKS, DeviceClock
from moeprof.ingest.trust.evidence import Evidence
from moeprof.tables.law import Law, Scope
from moeprof.units import format_ns

_LISTED = 4
_BETWEEN_DEVICES = ("step_time", "timeline", "stragglers", "pipeline", "hints")
"""Questions whose figures are unions over devices, or what one did while another waited."""
_WAITS = (
    Scope("collectives", ("collective_wait_share", "wait_ns", "wait_share")),
    Scope("dispatch_combine", ("exchange_wait_share", "wait_ns", "wait_share", "skew_ns")),
)
_BY_LAUNCH = (
    Scope(
        "launch",
        (
            *("launch_latency_median", "launch_latency_p90"),
            *("queue_depth_median", "empty_queue_share"),
        ),
    ),
    Scope("sync_gaps", ("host_late_time", "main_cause", "cause", "late_ns")),
)


def device_clocks(evidence: Evidence) -> Law:
    """Whether devices of each host share a clock; those that were ahead by a constant are shifted.

    Shifted devices are told with the amount: all figures are of the shifted stamps.
    """
    found = [(host, own) for host, own in evidence.device_clocks if own != NO_DEVICE_CLOCKS]
    if not found:
        return Law("device_clocks", "unchecked", "no collective between devices of one host")
    several = len(evidence.hosts) > 1
    compared = [clock for _, own in found for clock in own.others]
    unsure = [
        f"{_named(host, device, several)} by {format_ns(beyond)}"
        for host, own in found
        for device, beyond in own.unsure
    ]
    shifted = [
        f"{_named(host, clock.device, several)} by {_signed(-clock.ahead_ns)}"
        for host, own in found
        for clock in own.others
        if clock.ahead_ns
    ]
    told: list[str] = []
    scopes: tuple[Scope, ...] = ()
    if unsure:
        told.append(
            "collectives end on a device before they have begun on another, and no constant shift "
            f"mends that ({_listed(unsure)}): nothing is said that compares devices"
        )
        scopes += _WAITS
    if shifted:
        told.append(
            "ends of the same collectives differ by a constant: stamps of devices are shifted onto "
            f"the clock of the others ({_listed(shifted)})"
        )
        if not all(own.is_sure for _, own in found):
            told.append("which clock agrees with the host's is not known")
    far_ns = max(own.far_ns for _, own in found)
    if far_ns:
        told.append(
            f"no device work begins within {format_ns(far_ns)} of its launch, longer than the host "
            "launched for: times of the host and of devices cannot be compared"
        )
    if unsure or far_ns or not all(own.is_sure for _, own in found):
        scopes += _BY_LAUNCH
    worst_ns = max((abs(clock.ahead_ns) for clock in compared), default=0)
    if told:
        withheld = _BETWEEN_DEVICES if unsure else ()
        return Law("device_clocks", "warn", "; ".join(told), withheld, 0, worst_ns, "ns", scopes)
    return _agree(compared)


def _agree(compared: list[DeviceClock]) -> Law:
    if not compared:
        return Law("device_clocks", "unchecked", "too few collectives between devices of one host")
    detail = (
        f"{len(compared)} device(s) agree with another of their host on the ends of "
        f"{min(clock.pairs for clock in compared):,} or more calls of collectives"
    )
    return Law("device_clocks", "ok", detail, (), 0, 0, "ns")


def _named(host: str, device: int, several: bool) -> str:
    return f"{host}: device {device}" if several else f"device {device}"


def _signed(ns: int) -> str:
    return f"{'+' if ns >= 0 else '-'}{format_ns(abs(ns))}"


def _listed(items: list[str]) -> str:
    return ", ".join(items[:_LISTED]) + (", …" if len(items) > _LISTED else "")
