"""Question: what else differs between two runs, so that their times may differ for it?

Notes say it of what the traces show. Settings are what ``meta.json`` of both run folders holds, as
far as `moeprof capture` wrote it down: the command, XLA flags, the mesh, versions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import pandas as pd

from moeprof.analyzers.attribution import sums_in_steps, sure_rows
from moeprof.analyzers.heap.at_peak import step_module
from moeprof.analyzers.laws import laws_of
from moeprof.analyzers.load.batch import batch_of
from moeprof.analyzers.renamed import described_names
from moeprof.analyzers.window import window
from moeprof.tables.law import Need
from moeprof.tables.schema import Column, Schema
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
    work = sums_in_steps(trace).pandas()
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


_OF_TOKENS = frozenset({Need.PROGRAMS, Need.PROGRAMS_THAT_RAN})


def tokens_of(trace: Trace) -> int:
    """Tokens that all devices read in a step; 0 where it is not known, or a law withholds it."""
    batch = batch_of(trace)
    falls = any(
        not _OF_TOKENS.isdisjoint(law.breaks)
        or law.withholds_figures("step_time", ("tokens_per_step",))
        for law in laws_of(trace)
    )
    return 0 if batch is None or falls else batch.tokens


def _tokens(trace: Trace) -> str:
    tokens = tokens_of(trace)
    return f"{tokens:,}" if tokens else ""


def _routing(trace: Trace) -> str:
    """Whether routing was recorded: `--routing auto` makes it further results of the step."""
    return "none" if trace.routing.empty else "recorded"


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
    "tokens per step": _tokens,
    "routing": _routing,
    "groups of collectives": _groups,
    "rounds of loops (layers, microbatches)": _loops,
}

SETTING_CHANGES = Schema(
    "setting_changes",
    (
        Column("setting", "text", "", "option of the script, XLA flag, axis of the mesh, version"),
        Column("base", "text", "", "as base has it; empty where it does not; a mesh: not recorded"),
        Column("new", "text", "", "as new has it; empty where it does not; a mesh: not recorded"),
    ),
)


def setting_changes(
    base: Mapping[str, object] | None, new: Mapping[str, object] | None
) -> pd.DataFrame:
    """`SETTING_CHANGES` of two records; empty where capture made one of the runs not."""
    if base is None or new is None:
        return SETTING_CHANGES.frame()
    is_mesh_of_both = bool(base.get("mesh")) == bool(new.get("mesh"))
    before, after = (dict(_settings(one, is_mesh_of_both)) for one in (base, new))
    rows = [
        {"setting": name, "base": before.get(name, ""), "new": after.get(name, "")}
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]
    return SETTING_CHANGES.frame(rows)


def _settings(record: Mapping[str, object], by_axis: bool) -> Iterator[tuple[str, str]]:
    """Name and value of all that a record says, in the order in which it matters to a reader.

    The mesh axis by axis, or in one where the other record has none: nobody knows of its axes.
    """
    argv = record.get("argv")
    words = [str(word) for word in argv] if isinstance(argv, list) else []
    for name, value in (*_options(words[1:]), *_flags(record.get("xla_flags"))):
        yield name, value
    if not by_axis:
        yield "mesh", _axes(record.get("mesh"))
    for kind in ("mesh", "versions") if by_axis else ("versions",):
        found = record.get(kind)
        for name, value in found.items() if isinstance(found, dict) else ():
            yield f"{kind.removesuffix('s')} {name}", str(value)


def _axes(mesh: object) -> str:
    """``data 2 × expert 4``: the axes that split anything, or all."""
    if not mesh or not isinstance(mesh, dict):
        return "not recorded"
    split = {axis: size for axis, size in mesh.items() if size != 1} or mesh
    return " × ".join(f"{axis} {size}" for axis, size in split.items())


# Not a path, whose folders may be called a=1, as partitions of tables are.
_KEY = re.compile(r"[+~]{0,2}[A-Za-z_][\w.-]*")


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What a script was given: ``--lr 1`` and ``--lr=1`` are one option, other words have a place.

    ``lr=1``, as MaxText and Hydra read it, has a name too and so no place. What is given twice has
    both values in one text, as either may be the one that holds.
    """
    found: dict[str, list[str]] = {}
    place = 1 if words[:1] == ["-m"] else 0
    for before, word in pairwise(["", *words]):
        name, equals, value = word.partition("=")
        if word.startswith("-") and not _is_figure(word):
            found.setdefault(name, []).append(value if equals else "")
        elif before.startswith("-") and "=" not in before and not _is_figure(before):
            found[before][-1] = word
        elif equals and _KEY.fullmatch(name):
            found.setdefault(name, []).append(value or '""')
        else:
            found["script" if place == 0 else f"argument {place}"] = [word]
            place += 1
    for name, values in found.items():
        yield name, ", ".join(value or "given" for value in values)


def _is_figure(word: str) -> bool:
    """A word like -1 is a value, no option."""
    return word.lstrip("-").replace(".", "", 1).isdigit()


def _flags(text: object) -> Iterator[tuple[str, str]]:
    """XLA's flags one by one."""
    try:
        words = shlex.split(text) if isinstance(text, str) else []
    except ValueError:  # an open quote: shown as it is
        words = [str(text)]
    for word in words:
        name, equals, value = word.partition("=")
        yield f"XLA_FLAGS {name}", value if equals else "given"
