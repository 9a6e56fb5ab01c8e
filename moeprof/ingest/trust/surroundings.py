"""Were recorded steps as others are? Laws on the cost of profiling and on the GPUs' own state.

They are about the window that capture recorded, so a profile that it did not make has none of them.
They withhold nothing: what was recorded did happen, only not as it does otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from moeprof.ingest.sources.window_record import WindowRecord
from moeprof.tables.law import Law
from moeprof.units import format_ns, format_percent

_DEAR = 0.05
"""Of a step: what profiling may cost before it is a warning."""
_FEWEST = 2
"""Steps on a side from which on their median says something."""
_AHEAD = 0.5
"""Of a step: where devices had more to finish, the host's steps are not theirs."""
_SLOW_CLOCK = 0.8
"""Of the highest clock of the multiprocessors; boost clocks of cool GPUs lie above."""


def laws_of_window(window: WindowRecord) -> tuple[Law, ...]:
    """All of them; none on GPUs where the process had none."""
    cost = profiling_cost(window)
    return (cost, device_state(window)) if window.has_gpus else (cost,)


def profiling_cost(window: WindowRecord) -> Law:
    """How much longer recorded steps took than those before and behind the window."""
    name, beside = "profiling_cost", (*window.before_ns, *window.after_ns)
    if len(beside) < _FEWEST or not window.in_ns:
        return Law(name, "unchecked", "steps beside the recorded ones were not timed")
    usual, recorded = median(beside), median(window.in_ns)
    if (window.drain_ns or 0) > _AHEAD * usual:
        ahead = format_ns(window.drain_ns or 0)
        detail = f"the host ran {ahead} ahead of the devices: its clock does not time their steps"
        return Law(name, "unchecked", detail)
    share = recorded / usual - 1
    # Steps that vary by themselves are not blamed on the profiler.
    is_dear = share > _DEAR and min(window.in_ns) > usual and recorded > _upper_quartile(beside)
    told = f"recorded steps took {format_ns(recorded)}, those beside them {format_ns(usual)}"
    cost = f"profiling costs {format_percent(share)}" if share > 0 else "profiling costs none"
    parts = [f"{window.process}{told}: {cost}", *_of_profiler(window)]
    if is_dear:
        parts.append("steps that wait for launches grow most, so times here are upper bounds")
    return Law(
        name,
        "warn" if is_dear else "ok",
        "; ".join(parts),
        expected=int(usual),
        found=int(recorded),
        unit="ns",
    )


def _upper_quartile(values: tuple[int, ...]) -> int:
    return sorted(values)[(3 * len(values)) // 4 if len(values) > 1 else 0]


def _of_profiler(window: WindowRecord) -> Iterator[str]:
    took = {"start": window.start_ns, "stop": window.stop_ns}
    said = [f"{format_ns(value)} to {what}" for what, value in took.items() if value is not None]
    if said:
        yield f"the profiler took {' and '.join(said)}, in no step"


def device_state(window: WindowRecord) -> Law:
    """Whether GPUs ran at their clocks and for this process alone while the window was open."""
    name = "device_state"
    if not any(state for sample in window.samples for state in sample.values()):
        return Law(name, "unchecked", "clocks, power and other processes of GPUs were not recorded")
    devices = sorted({key for sample in window.samples for key in sample}, key=_number)
    wrong = {device: list(_faults(window, device)) for device in devices}
    broken = {device: faults for device, faults in wrong.items() if faults}
    if not broken:
        told = ", ".join(["no GPU was throttled or shared", *_facts(window, devices)])
        return Law(name, "ok", f"{window.process}{told}")
    first = "; ".join(f"GPU {device} {', '.join(faults)}" for device, faults in broken.items())
    return Law(
        name,
        "warn",
        f"{window.process}{first}",
        expected=0,
        found=len(broken),
        unit="GPUs throttled, slow or shared",
    )


def _faults(window: WindowRecord, device: str) -> Iterator[str]:
    states = [sample[device] for sample in window.samples if device in sample]
    reasons = dict.fromkeys(
        str(reason) for state in states for reason in _texts(state.get("throttled"))
    )
    if reasons:
        yield f"was throttled ({', '.join(reasons)})"
    clocks = _clocks(states)
    # At the window's start devices have nothing to do, and idle clocks are low.
    if len(clocks) > 1 and max(share for _, _, share in clocks[1:]) < _SLOW_CLOCK:
        now, most, share = max(clocks[1:], key=lambda clock: clock[2])
        yield f"ran at {now} of {most} MHz ({format_percent(share)})"
    others = max((_count(state.get("others")) for state in states), default=0)
    if others:
        yield f"was used by {others} other process{'es' if others > 1 else ''}"


def _clocks(states: list[Mapping[str, object]]) -> list[tuple[int, int, float]]:
    pairs = [(_count(s.get("sm_clock_mhz")), _count(s.get("sm_clock_max_mhz"))) for s in states]
    return [(now, most, now / most) for now, most in pairs if now and most]


def _facts(window: WindowRecord, devices: list[str]) -> Iterator[str]:
    """Clocks and power over all GPUs."""
    states = [sample[d] for sample in window.samples for d in devices if d in sample]
    clocks = [now for now, _, _ in _clocks(states)]
    if clocks:
        yield f"{min(clocks)} to {max(clocks)} MHz"
    watts = [_count(state.get("power_mw")) / 1000 for state in states if state.get("power_mw")]
    if watts:
        yield f"{min(watts):.0f} to {max(watts):.0f} W"


def _count(value: object) -> int:
    is_one = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if isinstance(value, int) and is_one else 0


def _texts(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _number(key: str) -> tuple[int, str]:
    return (int(key) if key.isdigit() else -1, key)
