"""Question: is the input whole, and of one run? Checks of what was recorded and could be read."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from moeprof.ingest.planes.record import MergedProcesses
from moeprof.ingest.sources.beside import RECORD
from moeprof.ingest.sources.sessions import NEAR_S
from moeprof.ingest.trust.evidence import Evidence
from moeprof.tables.law import Law, Need, Scope, Verdict
from moeprof.units import format_count, format_ns, format_percent

_DROPPED = re.compile(r"\b(dropped|lost|discarded|overflow\w*)\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d[\d,]*")
_NEAR_NS = NEAR_S * 1e9
_FEW_DROPPED = 0.01
"""With a smaller share of device events missing, figures per step still hold to their digits."""

NVIDIA_CAUSES = (
    "no permission for GPU counters (load the driver with NVreg_RestrictProfilingToAdminUsers=0: "
    "`options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d, or give the "
    "container CAP_SYS_ADMIN)",
    "another CUPTI user held the GPU (nsys, DCGM, or JAX's own with JAX_ENABLE_PGLE)",
)
"""jax-ml/jax and openxla/xprof threads; the option is NVIDIA's (ERR_NVGPUCTRPERM page)."""
AMD_CAUSES = (
    "rocprofiler-sdk was not loaded, or another tool held it (rocprofv3, ROCPROFILER_* and "
    "ROCP_TOOL_LIBRARIES in the environment)",
)
DAMAGE = ("the file is cut, and device work or the names of its events were in the lost part",)
OTHER_CAUSES = (
    "the program ran on the CPU backend (see JAX_PLATFORMS; on CPU host_tracer_level must not be "
    "0)",
    "the window was too short and held no step",
)


def truncated(evidence: Evidence) -> Law:
    """Whether the file could be read to its end."""
    read = format_count(evidence.read)
    if not evidence.damage:
        return Law("truncated", "ok", f"{read} events read to the end")
    places = len(evidence.damage)
    lost = tuple(
        Scope(need=Need.HOST_RECORD, host=host if len(evidence.hosts) > 1 else "")
        for host in evidence.damaged
    )
    rest = "the rest"
    if evidence.damaged and len(evidence.hosts) > 1:
        rest += f" of {', '.join(evidence.damaged)}"
    return Law(
        "truncated",
        "warn",
        f"recovered {read} events, {rest} is unreadable ({places} place(s), first: "
        f"{evidence.damage[0]})",
        scopes=lost,
    )


def device_work(evidence: Evidence) -> Law:
    """Whether any device did anything, and why none may have."""
    if evidence.tally.pieces:
        devices = len(evidence.tally.places)
        count = format_count(evidence.tally.pieces)
        return Law("device_work", "ok", f"{count} device events on {devices} device(s)")
    is_cut = any(own.check == "truncated" and own.verdict != "ok" for own in evidence.found)
    is_cut = is_cut or bool(evidence.damage)
    likely = DAMAGE if is_cut else _causes("".join(evidence.models))
    causes = "; ".join(f"({n}) {cause}" for n, cause in enumerate(likely, 1))
    causes = _of_no_device(evidence.strange) or f"Likely causes: {causes}"
    detail = f"no device events: nothing can be measured. {causes}"
    # Which programs ran is told by their work; what a cut file held of memory is not known either.
    lost = (Need.PROGRAMS,) if is_cut else ()
    breaks = (Need.DEVICE_TIMES, Need.PROGRAMS_THAT_RAN, *lost)
    return Law("device_work", "fail", detail, breaks)


_MOST_NAMED = 4


def _of_no_device(names: Sequence[str]) -> str:
    """Processes whose names were not understood: nothing says that the driver is to blame."""
    if not names:
        return ""
    unique = list(dict.fromkeys(names))
    listed = ", ".join(f"'{name}'" for name in unique[:_MOST_NAMED])
    more = f" and {len(unique) - _MOST_NAMED} more" if len(unique) > _MOST_NAMED else ""
    return (
        f"The file names no device that moeprof knows: it found the processes {listed}{more}; a "
        "device is called /device:GPU:0 or /device:TPU:0, behind the name of its host or alone"
    )


def _causes(models: str) -> tuple[str, ...]:
    """By vendor where the profile names a device."""
    if re.search(r"AMD|Instinct|gfx\d|\bMI\d", models):
        return (*AMD_CAUSES, *OTHER_CAUSES)
    if re.search(r"NVIDIA|Tesla|[HABV]\d00\b", models):
        return (*NVIDIA_CAUSES, *OTHER_CAUSES)
    return (*NVIDIA_CAUSES, *AMD_CAUSES, *OTHER_CAUSES)


def _share_without_program(evidence: Evidence) -> float:
    """Share of device time whose program is named, but not among those of the profile."""
    sums = evidence.tally.sums
    return sums.without_program_ns / sums.self_ns if sums.self_ns else 0.0


_MUCH_WITHOUT = 0.05
"""Share of device time without its program from which on findings lack something."""


def programs(evidence: Evidence) -> Law:
    """Whether each host's profile has the programs that its work is of."""
    ran = len(np.unique(evidence.hlo_ops["module"]))
    found = f"{evidence.programs} compiled program(s) in the profile"
    if ran and (without := _hosts_without_program(evidence)):
        names = ", ".join(without[:3]) + (", …" if len(without) > 3 else "")
        told = f"{found}, but none of the work of {names}, which is known by its names alone"
        return Law("programs", "warn", told)
    if ran and (share := _share_without_program(evidence)) >= _MUCH_WITHOUT:
        told = (
            f"{found}, but not those of {format_percent(share)} of device time, which is known by"
        )
        return _without_programs(evidence, "warn", f"{told} the names of its ops alone")
    if ran or (evidence.programs and not evidence.tally.pieces):
        return Law("programs", "ok", f"{found}, {ran} of them ran in the window")
    if evidence.programs:
        detail = f"{found}, but none of the work that was recorded"
    else:
        detail = "no compiled program in the profile; capture with enable_hlo_proto on"
    if not evidence.tally.pieces:
        return Law("programs", "warn", detail)
    detail += ": work is known by its kernels' names alone"
    return _without_programs(evidence, "fail", detail, (Need.PROGRAMS,))


def _without_programs(
    evidence: Evidence, verdict: Verdict, detail: str, lost: tuple[Need, ...] = ()
) -> Law:
    """Work of no known part may be of any, so the share of none is known.

    On CPU devices ops run inside of others on one thread, which programs alone tell.
    """
    if not evidence.models:
        return Law("programs", verdict, detail, (*lost, Need.NESTING))
    scopes = (Scope("breakdown", ("moe_share", "other_share")),)
    return Law("programs", verdict, detail, lost, scopes=scopes)


def _hosts_without_program(evidence: Evidence) -> list[str]:
    """Hosts of whose work no piece is of an instruction, where that of others is."""
    by_host = evidence.tally.has_ops
    return [host for host, known in by_host.items() if not known] if any(by_host.values()) else []


def dropped_events(evidence: Evidence) -> Law:
    """Whether the profiler says that it dropped events, as a full buffer makes it do."""
    said = [message for message in evidence.messages if _DROPPED.search(message)]
    if not said:
        return Law("dropped", "ok", "the profiler reported no dropped event")
    numbers = [int(n.replace(",", "")) for m in said for n in _NUMBER.findall(m)]
    kept = evidence.tally.pieces
    share = max(numbers) / (max(numbers) + kept) if numbers and kept else 1.0
    detail = f"the profiler dropped events: {said[0]}"
    if numbers and share < _FEW_DROPPED:
        told = f"{detail} ({format_percent(share)} of device events at most)"
        return Law("dropped", "warn", told)
    return Law("dropped", "fail", f"{detail}; capture fewer steps", (Need.DEVICE_TIMES,))


def profiler(evidence: Evidence) -> Law:
    """What the profiler itself reported."""
    said = [message for message in evidence.messages if not _DROPPED.search(message)]
    if not said:
        return Law("profiler", "ok", "the profiler reported no other error")
    return Law("profiler", "warn", f"the profiler reported: {said[0]}")


def one_run(evidence: Evidence) -> Law:
    """Whether the files are of one run: recorded at one time, with programs in common."""
    if apart := _recorded_apart(evidence):
        detail = f"{apart}: they are no hosts of one run; give one of them, or --host"
        return Law("one_run", "fail", detail, (Need.DEVICE_TIMES,))
    ran = {host: modules for host, modules in evidence.tally.modules.items() if modules}
    first = next(iter(ran), "")
    strange = [host for host, modules in ran.items() if modules.isdisjoint(ran[first])]
    if not strange:
        return Law("one_run", "ok", "no sign of another run in it")
    detail = (
        f"{', '.join(strange[:3])}{', …' if len(strange) > 3 else ''} ran no program that {first} "
        "ran: if these are not hosts of one run, figures over all of them mean nothing; see --host"
    )
    return Law("one_run", "warn", detail)


def _recorded_apart(evidence: Evidence) -> str:
    """Which hosts were not recorded at one time, where all say when; else empty."""
    windows = evidence.windows
    if len(windows) < 2 or not all(0 < began <= ended for _, began, ended in windows):
        return ""
    first, _, ended_ns = min(windows, key=lambda window: window[2])
    last, began_ns, _ = max(windows, key=lambda window: window[1])
    gap_ns = began_ns - ended_ns
    return (
        f"{first} and {last} were recorded {format_ns(gap_ns)} apart" if gap_ns >= _NEAR_NS else ""
    )


# Whether the processes that lie in one file can be told apart.


def merged(told: MergedProcesses) -> Law:
    """Work that may be of several ranks has no figure; what is left out is named."""
    if told.mixed:
        return Law(
            "merged",
            "fail",
            f"{told.mixed}; give the files of the ranks themselves, or merge them with numbers of "
            "processes of their own",
            (Need.DEVICE_TIMES,),
        )
    if told.unpaired:
        return Law("merged", "warn", "; ".join(told.unpaired))
    if told.found == 1:
        return Law("merged", "ok", "one process in the file")
    return Law(
        "merged", "ok", f"{told.found} processes of the run in one file, each read by itself"
    )


# Is what lies beside the profiles of the same run? Folders are copied together and mixed.

_UNIT = "profiles in the time of the record"


def run_record(evidence: Evidence) -> Law:
    """Whether the record, and what its processes wrote besides, is of the run of the profiles.

    What is not has been left out, so that no figure is taken from it.
    """
    check, found = "run_record", evidence.beside
    if not found.has_record:
        return Law(check, "unchecked", f"no {RECORD} of moeprof capture lies beside the profile")
    compared = (found.profiles, found.dated, _UNIT)
    if found.is_of_other_run:
        detail = (
            f"{RECORD} is of another run: {found.faults[0]}; it is left out, with host/, memory/ "
            "and routing/ beside it"
        )
        return Law(check, "warn", detail, (), *compared)
    if found.strays:
        return Law(check, "warn", f"left out: {'; '.join(found.strays)}", (), *compared)
    if not found.dated:
        return Law(check, "unchecked", f"{RECORD} or the profile states no date to compare")
    detail = f"{found.dated} of {found.profiles} profile(s) lie in the time of {RECORD}"
    return Law(check, "ok", detail, (), *compared)


def routing_record(evidence: Evidence) -> Law:
    """Whether the routing beside the profiles is of their run and steps, and counts anything."""
    check, found = "routing_record", evidence.routing
    if found.faults:
        return Law(check, "warn", "; ".join(found.faults))
    if not found.has_tables:
        return Law(check, "unchecked", "the run recorded no routing")
    if not found.is_identified:
        why = f"it bears no id that {RECORD} states"
        why = why if evidence.beside.has_record else f"there is no {RECORD}"
        return Law(check, "unchecked", f"nothing tells of which run the routing is: {why}")
    return Law(check, "ok", f"it bears the id of a process of {RECORD}")
