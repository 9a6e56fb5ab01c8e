"""Clocks of the devices of one host against each other, by the ends of their collectives.

A collective that all ranks of a group leave together ends on all of them within microseconds,
whoever came last, and on none before the last has begun. Ends that differ by a constant show the
clock of a device that was laid on the host's wrongly: its stamps are shifted onto the others'
before steps are made of them. Where calls cannot be as recorded and no constant mends that, the
clocks are unsure. Ends that merely differ, as a kernel's may whose ranks finish one by one, are
none of a clock: calls must agree on the constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from moeprof.columns.coded import Coded
from moeprof.columns.grouping import grouped, grouped_columns, pairs_of, places_in
from moeprof.columns.table import Table, isin, stacked
from moeprof.hlo.instruction import parse_groups
from moeprof.ingest.joining.common_clock import (
    LEAST_PAIRS,
    are_of,
    plain_opcode,
    with_causal_stamps,
)
from moeprof.ingest.planes.record import DeviceClock, DeviceClocks, Host, Record, is_made_up
from moeprof.ingest.xspace.space import Int64s

_TOGETHER = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter")
"""Opcodes whose ranks all send and receive as much: they leave together."""
JITTER_NS = 10_000
"""Ends on one clock differ by a few microseconds, from the polling of flags between devices."""
_OF_TRANSFER = 0.15
"""Ranks of a ring finish one chunk after another: part of the transfer by which ends differ."""
_AGREE_OF_TRANSFER = 0.5
_SIGMAS = 3 * 1.4826  # of a normal distribution, by the median distance from its median
_NEARLY_ALL = 0.9
_LAUNCH_BOUND_NS = 50_000
"""A device that waits for its launch begins within that: the least time says whose clock is right.
"""
_QUEUED_NS = 1_000_000_000
_SAMPLE = 64
_KEY = ["module", "op", "run_id", "runs", "call", "calls"]


def with_one_device_clock(host: Host, ops: Table, is_alone: bool) -> Host:
    """Lay the devices of `host` on one clock, in place, and note in its record what was found.

    `ops` are `HLO_OPS`; `is_alone` says that the run has no other host, so that devices are
    numbered by their order where nothing gives their ids. Devices of a CPU stamp by its own clock.
    """
    if host.platform == "cpu":
        return host
    record = host.record
    devices = sorted({int(part["device"][0]) for part in record.work if len(part)})
    calls = _calls(host, ops, devices, is_alone) if len(devices) > 1 else Table({})
    if calls:
        record.device_clocks = _on_one_clock(record, calls)
    far_ns = _far_ns(record)
    if far_ns:
        record.device_clocks = record.device_clocks._replace(far_ns=far_ns)
        if record.lead is not None:
            record.lead = record.lead._replace(are_apart=True)
    return host


def _on_one_clock(record: Record, calls: Table) -> DeviceClocks:
    """Shift the devices onto the clock of one of them."""
    ahead, unsure = _ahead(calls)
    reference, is_sure = next(iter(ahead)), True
    if any(clock.ahead_ns for clock in ahead.values()):
        reference, is_sure = _reference(record, {d: c.ahead_ns for d, c in ahead.items()})
        base_ns = ahead[reference].ahead_ns
        ahead = {d: c._replace(ahead_ns=c.ahead_ns - base_ns) for d, c in ahead.items()}
        _shift(record, {d: -c.ahead_ns for d, c in ahead.items() if c.ahead_ns})
        if record.lead is not None and record.lead.are_apart:
            with_causal_stamps(record)
    others = tuple(clock for device, clock in ahead.items() if device != reference)
    return DeviceClocks(reference, others, unsure, is_sure)


def _far_ns(record: Record) -> int:
    """The least time from launch to work of a device that never came near the host's calls.

    A queue holds back work by what was launched before: not by more than the host launched for,
    and never by a second at every single launch. 0 where no device is so far.
    """
    if not len(record.calls.start_ns):
        return 0
    most_ns = max(_QUEUED_NS, int(np.ptp(record.calls.start_ns)))
    far = []
    for part in record.work:
        some = part[:: max(len(part) // _SAMPLE, 1)]  # most devices come near at once
        least = _least_lead_ns(some, record)
        if least is not None and least > most_ns:
            least = _least_lead_ns(part, record)
            far += [least] if least is not None and least > most_ns else []
    return max(far, default=0)


def _least_lead_ns(part: Table, record: Record) -> int | None:
    """Least time from a launch to its work; None where the host has no launch of it."""
    place = record.calls.of(part["correlation_id"])
    known = place >= 0
    if not known.any():
        return None
    lead = part["start_ns"][known] - record.calls.start_ns[place[known]]
    return int(lead.min())


def _calls(host: Host, ops: Table, devices: list[int], is_alone: bool) -> Table:
    """Device, `_KEY`, group, kind, start and end of each piece whose end can be compared."""
    found = _collectives(ops, is_tpu=host.platform == "tpu")
    record, texts = host.record, host.record.labels.texts
    code_of = {text: code for code, text in enumerate(texts)}
    found = found[isin(found["op"], code_of)]
    codes = np.array([code_of[op] for op in found["op"].tolist()], np.int64)
    found = found.assign(op=codes)
    is_one = np.zeros(len(texts), bool)
    is_one[codes] = True
    columns = ("device", "module", "op", "run_id", "start_ns", "end_ns")
    pieces = stacked([part.select(*columns)[is_one[part["op"]]] for part in record.work])
    row = places_in(pieces, found, "module", "op")
    calls = pieces.assign(row=row)[row >= 0].sorted("device", "start_ns")
    group = _groups(calls, found, host, devices, is_alone)
    calls = calls.assign(group=group, kind=found["kind"][calls["row"]])[group >= 0]
    calls = _with_order(calls)
    own = grouped(calls, "device", "module", "op", "run_id")
    return calls.assign(call=own.place(), calls=own.size[own.of])


def _collectives(ops: Table, *, is_tpu: bool) -> Table:
    """Module, op and groups of those whose ranks leave together; on a TPU a start ends at once."""
    is_one = are_of(ops, _TOGETHER)
    if is_tpu:
        is_one &= ~Coded.of(ops["opcode"]).that(lambda opcode: opcode.endswith("-start"))
    found: Table = ops.select("module", "op", "replica_groups")[is_one]
    return found.assign(kind=Coded.of(map(plain_opcode, ops["opcode"][is_one])))


def _with_order(calls: Table) -> Table:
    """Executions that the reader counted on each device get their place among those instead.

    ``runs`` is how many there are, 0 where the runtime gave the id: executions are paired by place
    only where two devices have equally many. Where no execution is known, each call of an op counts
    as one: of those that are called as seldom as any, as others may be called several times in one.
    """
    run_id, runs = calls["run_id"].copy(), np.zeros(len(calls), np.int64)
    counted, lacking = np.flatnonzero(is_made_up(run_id)), calls["run_id"] == -1
    if len(counted):
        own = grouped(calls[counted], "device", "module")
        each = grouped_columns([own.of, run_id[counted]], is_sorted=False)
        of_own = grouped_columns([own.of[each.first]])
        runs[counted] = of_own.size[own.of]
        run_id[counted] = of_own.place()[each.of]
    if not lacking.any():
        return calls.assign(run_id=run_id, runs=runs)
    by_op = grouped(calls[lacking], "device", "module", "op")
    runs[lacking], run_id[lacking] = by_op.size[by_op.of], by_op.place()
    by_program = grouped(calls, "device", "module")
    is_enough = lacking & (runs >= LEAST_PAIRS)
    seldom = by_program.min(np.where(is_enough, runs, np.iinfo(np.int64).max))
    is_kept = ~lacking | (runs == seldom[by_program.of])
    found: Table = calls.assign(run_id=run_id, runs=runs)[is_kept]
    return found


def _groups(calls: Table, found: Table, host: Host, devices: list[int], is_alone: bool) -> Int64s:
    """Which group of its collective, a row of `found`, each call is in, -1 where not known."""
    ids = host.record.ids
    by_order = {device: place for place, device in enumerate(devices)}
    known = {d: ids[d] for d in devices} if all(d in ids for d in devices) else {}
    group, device = np.full(len(calls), -1, np.int64), calls["device"]
    alike = grouped(found, "module", "replica_groups")
    pairs = found[alike.first].rows("module", "replica_groups")
    of_call = alike.of[calls["row"]]
    for at, (module, text) in enumerate(pairs):
        mine = np.flatnonzero(of_call == at)
        groups = parse_groups(text)
        if len(groups) < 2:  # all devices of the program
            group[mine] = 0
            continue
        program = host.programs.get(module)
        assigned = program.head.devices if program is not None else ()
        number = {i: n for n, i in enumerate(assigned)} if assigned and known else {}
        own_ids = known or (by_order if is_alone else {})
        group_of = {member: place for place, own in enumerate(groups) for member in own}
        place_of = {d: group_of.get(number.get(i, i), -1) for d, i in own_ids.items()}
        group[mine] = [place_of.get(d, -1) for d in device[mine].tolist()]
    return group


def _ahead(calls: Table) -> tuple[dict[int, DeviceClock], tuple[tuple[int, int], ...]]:
    """Clocks against the first device's, and by how much calls of the others cannot be.

    A device without a call in common with the first is compared with one that is aligned.
    """
    numbers = np.unique(calls["device"]).tolist()
    by_device = {device: calls[calls["device"] == device] for device in numbers}
    first = next(iter(by_device))
    ahead = {first: DeviceClock(first, 0, 0, 0)}
    unsure: dict[int, int] = {}
    waiting = [device for device in by_device if device != first]
    while waiting:
        left = []
        for device in waiting:
            pairs = (
                _pairs(by_device[one], by_device[device], ahead[one].ahead_ns) for one in ahead
            )
            both = next((pair for pair in pairs if len(pair) >= LEAST_PAIRS), None)
            if both is None:
                left.append(device)
                continue
            clock, beyond_ns = _judged(device, both)
            if clock is None:
                unsure[device] = beyond_ns
            else:
                ahead[device] = clock
        if len(left) == len(waiting):
            break
        waiting = left
    return ahead, tuple(unsure.items())


def _pairs(one: Table, other: Table, ahead_ns: int) -> Table:
    """Calls of both devices, those of `one` on the first one's clock: its stamps end with _x."""
    rows, at = pairs_of(one, other, *_KEY, "group")
    both: Table = one[rows]
    return both.assign(
        start_ns_x=one["start_ns"][rows] - ahead_ns,
        end_ns_x=one["end_ns"][rows] - ahead_ns,
        start_ns_y=other["start_ns"][at],
        end_ns_y=other["end_ns"][at],
    )


def _judged(device: int, both: Table) -> tuple[DeviceClock | None, int]:
    """The clock of `device`; None, and by how much its calls cannot be, where no constant fits."""
    names = ("start_ns_x", "end_ns_x", "start_ns_y", "end_ns_y")
    start, end, other_start, other_end = (both[name] for name in names)
    apart = other_end - end
    # In which order ranks leave is a habit of the kernel: each kind counts once.
    ahead_ns = int(np.median(grouped(both, "kind").median(apart)))
    rest = np.abs(apart - ahead_ns)
    transfer_ns = float(np.median(np.minimum(end - start, other_end - other_start)))
    # by how much one of both left before the other had begun
    beyond = np.maximum(other_start - end, start - other_end)
    is_impossible = float((beyond > JITTER_NS).mean()) > 1 - _NEARLY_ALL
    residual_ns = int(np.quantile(rest, _NEARLY_ALL))
    noise_ns = _SIGMAS * float(np.median(rest))
    if abs(ahead_ns) > max(JITTER_NS, _OF_TRANSFER * transfer_ns, noise_ns):
        mended = np.maximum(other_start - ahead_ns - end, start - other_end + ahead_ns)
        is_fit = residual_ns <= max(JITTER_NS, _AGREE_OF_TRANSFER * transfer_ns)
        is_fit &= float((mended > JITTER_NS).mean()) <= 1 - _NEARLY_ALL
        if is_fit and _is_same_execution(both, ahead_ns):
            return DeviceClock(device, ahead_ns, residual_ns, len(both)), 0
    if is_impossible:
        return None, int(np.quantile(beyond, _NEARLY_ALL))
    return DeviceClock(device, 0, residual_ns, len(both)), 0


def _is_same_execution(both: Table, ahead_ns: int) -> bool:
    """Whether executions paired by their place are one: any other place is farther away.

    Devices that share no moment were paired right all the same, as they were recorded together.
    """
    if not both["runs"].any():
        return True
    begun = np.sort(grouped(both, "module", "run_id").min(both["start_ns_x"]))
    if len(begun) < 2 or 2 * abs(ahead_ns) < int(np.diff(begun).min()):
        return True
    return abs(ahead_ns) > int(both["end_ns_x"].max() - both["start_ns_x"].min())


def _reference(record: Record, ahead: Mapping[int, int]) -> tuple[int, bool]:
    """The device whose clock is right, and whether that is sure as against the host's.

    The one of most, and of a tie that on which work begins soonest behind its launch, never before.
    """
    same = {d: sum(abs(a - o) <= JITTER_NS for o in ahead.values()) for d, a in ahead.items()}
    most = [device for device, count in same.items() if count == max(same.values())]
    if 2 * same[most[0]] > len(ahead):
        return most[0], True
    soonest = _soonest_ns(record, ahead)
    if soonest is None:
        return most[0], True  # nothing compares the host with its devices
    possible = [d for d in most if soonest + ahead[d] >= 0]
    if not possible:
        return max(most, key=lambda d: ahead[d]), False
    best = min(possible, key=lambda d: soonest + ahead[d])
    if soonest + ahead[best] <= _LAUNCH_BOUND_NS:
        return best, True
    return possible[0], len(Counter(ahead[d] for d in possible)) == 1


def _soonest_ns(record: Record, ahead: Mapping[int, int]) -> int | None:
    """Least time from a launch to its work on the first device's clock; None without launches."""
    least = []
    for part in record.work:
        device = int(part["device"][0]) if len(part) else -1
        lead = _least_lead_ns(part, record) if device in ahead else None
        least += [lead - ahead[device]] if lead is not None else []
    return min(least, default=None)


def _shift(record: Record, by_device: Mapping[int, int]) -> None:
    for frames in (record.work, record.waits):
        for at, part in enumerate(frames):
            shift = by_device.get(int(part["device"][0]), 0) if len(part) else 0
            if shift:
                shifted = {name: part[name] + shift for name in ("start_ns", "end_ns")}
                frames[at] = part.assign(**shifted)
