"""Question: what else differs between two runs, so that their times may differ for it?"""

from __future__ import annotations

from collections.abc import Callable

from moeprof.analyzers.attribution import sums_in_steps, sure_rows
from moeprof.analyzers.heap.module import step_module
from moeprof.analyzers.renamed import described_names
from moeprof.analyzers.window import window
from moeprof.tables.trace import Trace
from moeprof.units import format_percent

_FEW_STEPS = 3
_UNLIKE = 0.05
"""Shares of op time with known ops that differ by more than this are not compared by component."""


def notes_on_runs(base: Trace, new: Trace) -> tuple[str, ...]:
    """Differences in machine, software, mesh and model, and what the noise cannot tell."""
    told = [
        f"{name}: {first or 'not known'} in base, {second or 'not known'} in new"
        for name, first, second in ((name, fact(base), fact(new)) for name, fact in _FACTS.items())
        if first != second
    ]
    return (*told, *_names(base, new), *_noise_notes(base, new))


def _names(base: Trace, new: Trace) -> list[str]:
    """What the user's rules name on each side, once where that is the same."""
    sides: dict[str, list[str]] = {}
    for side, trace in (("base", base), ("new", new)):
        for note in described_names(trace):
            sides.setdefault(note, []).append(side)
    return [f"{' and '.join(names)}: {note}" for note, names in sides.items()]


def unlike_rules(base: Trace, new: Trace) -> str:
    """Why components cannot be compared, where the user named those of each by other rules."""
    if base.meta.names.rules == new.meta.names.rules:
        return ""
    found = (trace.meta.names for trace in (base, new))
    told = [f"{len(n.rules)} of {n.file}" if n.rules else "none" for n in found]
    return (
        "components are not compared: expected the same rules that name them on both sides, found "
        f"{told[0]} in base and {told[1]} in new; give --names FILE, which holds for both"
    )


def unlike_attribution(base: Trace, new: Trace) -> str:
    """Why components cannot be compared, where more is known of one run's ops; else empty.

    Work that is unattributed in one run alone would look like work that came or went.
    """
    bare = [side for side, trace in (("base", base), ("new", new)) if not _has_program(trace)]
    if len(bare) == 1:
        return (
            f"components are not compared: {bare[0]} has no compiled program, so nothing tells "
            "what its ops are; compare .xplane.pb files, which hold theirs"
        )
    shares = [_attributed_share(trace) for trace in (base, new)]
    if abs(shares[0] - shares[1]) <= _UNLIKE:
        return ""
    told = [format_percent(share) for share in shares]
    return (
        f"components are not compared: the program's ops are known for {told[0]} of op time in "
        f"base and {told[1]} in new: changes would be of what is known, not of what is done; "
        "compare .xplane.pb files that hold their programs"
    )


def _has_program(trace: Trace) -> bool:
    """Whether the profile tells more of an op than its name, as a JSON trace does not."""
    return bool(trace.hlo_ops["opcode"].ne("").any())


def _attributed_share(trace: Trace) -> float:
    """Share of op time in ops of programs that the profile keeps, known for sure."""
    work = sums_in_steps(trace)
    kept = trace.modules["module"][trace.modules["instructions"] > 0]
    is_known = (sure_rows(work) >= 0) & work["module"].isin(kept).to_numpy()
    total = int(work["self_ns"].sum())
    return int(work["self_ns"][is_known].sum()) / total if total else 0.0


def _noise_notes(base: Trace, new: Trace) -> list[str]:
    steps = [window(trace).steps for trace in (base, new)]
    if not all(steps):
        return []
    counts = f"{steps[0]} step{'s' * (steps[0] > 1)} of base and {steps[1]} of new"
    if min(steps) < 2:
        return [f"noise is not known: {counts}; capture at least 5 of each"]
    notes = ["noise is what steps of one capture differ by; two captures of one program may more"]
    if min(steps) <= _FEW_STEPS:
        notes.append(
            f"{counts}: few, so that only large changes are beyond noise; capture 5 or more"
        )
    return notes


def _platform(trace: Trace) -> str:
    return trace.meta.platform


def _devices(trace: Trace) -> str:
    """Devices with work: figures are per device, so that another count is no fault."""
    return str(trace.meta.devices)


def _models(trace: Trace) -> str:
    return ", ".join(sorted(set(trace.devices["model"]) - {""}))


def _groups(trace: Trace) -> str:
    """Sizes of the groups of the step's collectives, by kind: they follow the mesh."""
    program = trace.programs.get(step_module(trace))
    ops = program.ops.values() if program is not None else ()
    sizes = {(op.opcode.removesuffix("-start"), op.group_size) for op in ops if op.group_size}
    return ", ".join(f"{opcode} over {size}" for opcode, size in sorted(sizes))


def _loops(trace: Trace) -> str:
    """Rounds of the loops that run: a scan over layers has one per layer."""
    ops = trace.hlo_ops[trace.hlo_ops["module"] == step_module(trace)]
    loops = ops[(ops["opcode"] == "while") & (ops["trip_count"] > 1)]
    rows = set(trace.events["instruction"])
    ran = loops[loops.index.isin(rows)] if loops.index.isin(rows).any() else loops
    return ", ".join(map(str, sorted(set(ran["trip_count"].tolist()))))


_FACTS: dict[str, Callable[[Trace], str]] = {
    "platform": _platform,
    "device": _models,
    "jax": lambda trace: trace.meta.jax_version,
    "devices with work (figures are per device)": _devices,
    "groups of collectives": _groups,
    "rounds of loops (layers, microbatches)": _loops,
}
