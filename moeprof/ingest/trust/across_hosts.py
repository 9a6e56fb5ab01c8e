"""Checks of what hosts and devices are to each other: ranks, who is missing, clocks."""

from __future__ import annotations

from collections.abc import Sequence

from moeprof.columns.grouping import grouped
from moeprof.ingest.planes.record import NO_DEVICE_CLOCKS, DeviceClock
from moeprof.ingest.sources.processes import Ranked
from moeprof.ingest.trust.evidence import Evidence
from moeprof.tables.law import Law, Need, Scope, Verdict
from moeprof.tables.trace import HostClock
from moeprof.units import format_ns

_MOST_NAMED = 4


def ranks(evidence: Evidence) -> Law:
    """Whether the rank of each device is known, and from where."""
    found = evidence.ranked
    if found is None or not found.devices:
        return Law("ranks", "unchecked", "no device in the profile")
    devices = len(found.devices)
    known = int((found.devices["rank"] >= 0).sum())
    if found.conflict:
        told = f"{found.conflict}: no rank is known; devices are told apart by host and ordinal"
        return Law("ranks", "fail", told, (Need.EVERY_DEVICE,), devices, 0, "devices")
    told = f"{known} of {devices} device(s) by {found.told_by}" if found.told_by else ""
    if known < devices:
        told = (
            f"{told}; " if told else "no device id, run record or -p<k> in the files' names: "
        ) + (
            f"no rank is known on {_list(found.unknown)}: waits in groups of some devices are not "
            "known, and negative numbers tell devices apart"
        )
        worked = evidence.tally.modules.keys() & set(found.unknown)
        if not worked:
            return Law("ranks", "ok", told, (), devices, known, "devices")
        lost = (Need.EVERY_DEVICE,) if _are_grouped(evidence, devices) else ()
        return Law("ranks", "warn", told, lost, devices, known, "devices")
    if not found.is_assigned and devices > 1:
        told += (
            "; groups of collectives are taken to count by rank, as no program names its devices"
        )
    if found.differs:
        return Law("ranks", "warn", f"{told}; {found.differs}", (), devices, known, "devices")
    return Law("ranks", "ok", told, (), devices, known, "devices")


def _are_grouped(evidence: Evidence, devices: int) -> bool:
    """Whether a collective is in groups of some devices: who waits for whom is not known then."""
    texts = dict.fromkeys(evidence.hlo_ops["replica_groups"].tolist())
    return any(text.count("{") > 2 or 0 < text.count(",") + 1 < devices for text in texts if text)


def processes(evidence: Evidence) -> Law:
    """Whether the profile of every process of the run is there, by its record and its programs."""
    told = evidence.processes
    read = f"{len(evidence.hosts)} process(es) read"
    if told.missing:
        read = f"expected {told.expected} processes, found {len(evidence.hosts)}"
    found = evidence.ranked
    if found is not None and found.missing and found.devices:
        return _devices_missing(evidence, found, read)
    if told.missing:
        which = ", ".join(told.missing)
        figures = (told.expected, len(evidence.hosts), "processes")
        detail = f"{read}: no profile of {which}; ranks there are not known"
        return Law("processes", "fail", detail, (Need.EVERY_DEVICE,), *figures)
    if told.not_asked:
        which = ", ".join(told.not_asked)
        return Law("processes", "ok", f"{read}; capture was not asked to record {which}")
    if told.expected:
        return Law("processes", "ok", f"{read} of {told.expected}")
    if found is not None and found.expected and not (found.unknown or found.missing):
        all_there = f"{read}; all {found.expected} device(s) that its programs name are there"
        figures = (found.expected, len(found.devices), "devices")
        return Law("processes", "ok", all_there, (), *figures)
    return Law("processes", "ok", f"{read}; nothing says how many there were")


def _devices_missing(evidence: Evidence, found: Ranked, read: str) -> Law:
    """Devices that programs which ran name, and that no file has."""
    told = evidence.processes
    here = len(found.devices)
    of = f" of {told.expected}" if told.expected and not told.missing else ""
    detail = (
        f"{read}{of}; programs of this run name {found.expected} devices, {here} are there: "
        f"{_missing(found)}; waits in their groups are not known, figures over all are partial"
    )
    if told.missing:
        detail += f"; no profile of {', '.join(told.missing)}"
    if told.not_asked:
        detail += f"; capture was not asked to record {', '.join(told.not_asked)}"
    if told.are_chosen:
        detail += "; these hosts were chosen"
    is_wanted = told.are_chosen or (bool(told.not_asked) and not told.missing)
    verdict: Verdict = "ok" if is_wanted else "warn"
    return Law("processes", verdict, detail, (), found.expected, here, "devices")


def _missing(found: Ranked) -> str:
    """The missing devices, with their process and neighbours where all hosts have as many."""
    table = found.devices
    by_host = grouped(table, "host")
    first, last = by_host.min(table["rank"]), by_host.max(table["rank"])
    each = int(by_host.size[0])
    is_regular = (by_host.size == each).all() and (first % each == 0).all()
    is_regular &= (last - first == each - 1).all()
    devices = _devices(found.missing)
    if not is_regular or found.expected % each:
        return devices
    numbers = sorted({rank // each for rank in found.missing})
    if len(found.missing) != each * len(numbers):
        return devices
    names = table["host"][by_host.first].tolist()
    hosts = dict(zip((first // each).tolist(), names, strict=True))
    named = "process" if len(numbers) == 1 else "processes"
    where = ""
    if len(numbers) == 1 and {numbers[0] - 1, numbers[0] + 1} <= hosts.keys():
        where = f", between {hosts[numbers[0] - 1]} and {hosts[numbers[0] + 1]}"
    of = found.expected // each
    return f"{devices} ({named} {_list([str(n) for n in numbers])} of {of}{where})"


def _devices(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"device {numbers[0]} is missing"
    last = len(numbers) - 1
    if last < _MOST_NAMED:
        return f"devices {', '.join(map(str, numbers[:last]))} and {numbers[last]} are missing"
    first = ", ".join(map(str, numbers[:_MOST_NAMED]))
    return f"devices {first} and {last + 1 - _MOST_NAMED} more are missing"


def _list(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def clocks(evidence: Evidence) -> Law:
    """Whether times of several hosts may be compared; host by host."""
    hosts = len(evidence.hosts)
    if hosts < 2:
        return Law("clocks", "ok", "one host, one clock")
    why = [f"{host}: {reason}" for host, reason in evidence.not_aligned.items()]
    if not evidence.clocks:
        reasons = f" ({why[0]})" if why else ""
        detail = f"clocks of the hosts are not aligned{reasons}: no statement across hosts"
        return Law("clocks", "warn", detail, (), hosts, 0, "hosts")
    detail = _aligned(evidence.clocks)
    aligned = len(evidence.clocks)
    if not why:
        return Law("clocks", "ok", detail, (), hosts, aligned, "hosts")
    detail = (
        f"not aligned: {'; '.join(why)}: nothing is said about who waits for these; others are "
        f"{detail}"
    )
    return Law("clocks", "warn", detail, (), hosts, aligned, "hosts")


def _aligned(clocks: Sequence[HostClock]) -> str:
    """How clocks came to be those of the first host: by collectives, or as one machine's."""
    first, *others = clocks
    fitted = [clock for clock in others if clock.pairs]
    shared = [clock.host for clock in others if not clock.pairs]
    parts = []
    if fitted:
        told = ", ".join(
            f"{clock.host} {_signed(clock.offset_ns)} (residual {format_ns(clock.residual_ns)})"
            for clock in fitted
        )
        pairs = min(clock.pairs for clock in fitted)
        parts.append(f"aligned to {first.host} on {pairs:,} ends of collectives: {told}")
    if shared:
        one = len(shared) == 1
        whose = "is a process" if one else "are processes"
        has = "has" if one else "have"
        parts.append(f"{_list(shared)} {whose} of {first.host}'s machine and {has} its clock")
    return "; ".join(parts)


# Do the devices of a host stamp by one clock? Judged by ends of collectives.

_LISTED = 4
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
        lost = (Need.DEVICE_CLOCKS,) if unsure else ()
        return Law("device_clocks", "warn", "; ".join(told), lost, 0, worst_ns, "ns", scopes)
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
