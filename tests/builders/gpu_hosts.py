"""Profiles of several GPU hosts that run one program in step, with what the runtime says of ids.

Each device runs a fusion, then a collective in groups, which all of a group leave ``transfer_us``
after its last has come; between the steps lies a sum over all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from builders.hlo import computation, hlo_proto, op
from builders.protobuf import message, packed
from builders.xspace import Event, Plane, Ref, event, host, line, metadata, xspace

US = 1000
STEP_US = 1000
WORK_US = 100
SUM_US = 30


def grouped_program(groups: Sequence[Sequence[int]], assigned: Sequence[int] = ()) -> bytes:
    """``work``, ``gather`` in `groups`, ``sum`` over all, for the devices of these ids if given."""
    field = tuple((49, message((1, packed(list(group))))) for group in groups)
    everyone = [member for group in groups for member in group]
    whole = ((49, message((1, packed(sorted(everyone))))),)
    computed = computation(
        "main",
        op("p", "parameter", "f32[8]"),
        op("work", "fusion", "f32[8]", "p"),
        op("gather", "all-gather", "f32[16]", "work", extra=field),
        op("sum", "all-reduce", "f32[16]", "gather", extra=whole),
    )
    devices = [message((1, packed([identity]))) for identity in assigned]
    parts = message((1, 1), (2, len(assigned)), *((3, device) for device in devices))
    return hlo_proto(computed, more=((15, parts),) if assigned else ())


def write_hosts(
    folder: Path,
    hosts: Mapping[str, Sequence[int]],
    groups: Sequence[Sequence[int]],
    late_us: Mapping[int, int] | None = None,
    *,
    steps: int = 4,
    transfer_us: int = 50,
    assigned: Sequence[int] = (),
    ahead_us: Mapping[str, int] | None = None,
    last_step: Mapping[str, int] | None = None,
    has_ids: bool = True,
    members: Mapping[int, int] | None = None,
    stands_us: int = 0,
) -> Path:
    """A file per host; `hosts` are global ids of the devices 0, 1, … of each.

    `groups` count by number; `members` is the number of each id where it is not the id itself.
    `late_us` is by id how much longer ``work`` takes, `ahead_us` by host how far its stamps are
    ahead, `last_step` the last step of a host that stops: in the next one the others stand
    `stands_us` in ``gather``, which is the last that they do.
    """
    folder.mkdir(parents=True, exist_ok=True)
    late = late_us or {}
    number = members or {identity: identity for ids in hosts.values() for identity in ids}
    group_of = {n: tuple(group) for group in groups for n in group}
    arrival = {
        i: max(
            WORK_US + late.get(other, 0)
            for other in number
            if group_of[number[other]] == group_of[number[i]]
        )
        for i in number
    }
    everyone = max(arrival.values()) + transfer_us
    proto = grouped_program(groups, assigned)
    for name, ids in hosts.items():
        shift = (ahead_us or {}).get(name, 0)
        planes, spans, calls, marks = [], [], [], []
        count = (last_step or {}).get(name, steps - 1) + 1
        for device, identity in enumerate(ids):
            kernels = []
            for step in range(count):
                at = 5000 + step * STEP_US + shift
                own = WORK_US + late.get(identity, 0)
                left = arrival[identity] + transfer_us
                spans_us = {
                    "work": (0, own),
                    "gather": (own, left),
                    "sum": (left, everyone + SUM_US),
                }
                if last_step and step > min(last_step.values()):
                    spans_us = {"work": (0, own), "gather": (own, own + stands_us)}
                for place, (name_of, (begin, end)) in enumerate(spans_us.items()):
                    correlation = 1 + place + 3 * (step + steps * device)
                    kernels.append(
                        event(
                            f"{name_of}_kernel",
                            (at + begin) * US,
                            (end - begin) * US,
                            hlo_op=Ref(name_of),
                            program_id=7,
                            correlation_id=correlation,
                        )
                    )
                    launch_ns = (at - 90 + place) * US
                    launch = event("cuLaunchKernel", launch_ns, 500, correlation_id=correlation)
                    calls.append((device, launch))
                stats: dict[str, int] = {"_c": 100 + step}
                if has_ids:
                    stats["global_device_id"] = identity
                title = f"[{device}] CommonPjRtLoadedExecutable::Execute (jit_step)"
                spans.append((device, event(title, (at - 95) * US, 20 * US, **stats)))
                if not device:
                    marks.append(event("train", (at - 99) * US, 30 * US, step_num=step))
                    marks.append(
                        event("X::Execute (jit_step)", (at - 98) * US, 25 * US, run_id=100 + step)
                    )
            planes.append(Plane(f"/device:GPU:{device}", (line("Stream #7(Compute)", *kernels),)))
        threads = [
            line(f"py_xla_execute/{device}", *_of(spans, device), *_of(calls, device))
            for device in range(len(ids))
        ]
        data = xspace(metadata(p7=proto), *planes, host(line("python3", *marks), *threads))
        (folder / f"{name}.xplane.pb").write_bytes(data)
    return folder


def _of(items: Sequence[tuple[int, Event]], device: int) -> list[Event]:
    return [item for owner, item in items if owner == device]
