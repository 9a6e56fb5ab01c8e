"""Question: what does a page or a terminal say of a run in a few words?

Which run it is, what went wrong, what is not known and what to do next; nothing here is computed
from anything but the document.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from moeprof.answers.document import NO_FINDING, Document, is_unrecorded
from moeprof.answers.names import printable
from moeprof.answers.story import basis, label, parts, step_time
from moeprof.reports.run_problems import problems_of
from moeprof.reports.trust_words import withheld_by
from moeprof.units import format_percent

_CHANGED = re.compile(r"\b([a-z_]+) → ([a-z_]+) (?=\d)")
"""A part that rules changed, in their note."""

TITLES = {
    "step_time": "Step time",
    "breakdown": "Where the step goes",
    "dispatch_combine": "Dispatch and combine",
    "grouped_gemm": "Grouped GEMM",
    "sync_gaps": "Why devices wait",
    "launch": "Kernels and their launch",
    "receive_buffers": "Receive buffers",
    "memory": "Memory at the peak",
    "expert_load": "Expert load",
    "roofline": "Roofline",
    "ops": "Costliest operations",
    "timeline": "What each device does",
    "collectives": "Collectives",
    "stragglers": "Who the others wait for",
    "pipeline": "Pipeline stages",
    "hints": "What to do",
}

GROUPS = {
    "Findings": ("hints",),
    "Time": ("step_time", "breakdown", "timeline", "ops"),
    "Communication": ("dispatch_combine", "collectives", "stragglers"),
    "Experts": ("expert_load", "grouped_gemm"),
    "Memory": ("memory", "receive_buffers"),
    "Devices": ("roofline", "sync_gaps", "launch", "pipeline"),
}
"""Sections of a page in their order; what is in no group comes last."""


def title(name: str) -> str:
    """The heading of an analysis."""
    return TITLES.get(name, name.replace("_", " ").capitalize())


def grouped(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Analyses by the group in which a page shows them; groups without any are left out."""
    left = list(names)
    found = []
    for group, members in GROUPS.items():
        found.append((group, [name for name in members if name in left]))
        left = [name for name in left if name not in members]
    return [(group, members) for group, members in [*found, ("More", left)] if members]


def described_run(document: Document) -> str:
    """Devices, versions and steps in one line, as ``8 × cpu · jax 0.12.0 · 3 of 5 steps used``."""
    run = document["run"]
    record = run.get("record")
    kinds = record.get("kinds", []) if record else []
    # of several kinds nobody knows how many of each were read
    out = run.get("devices_left_out", 0)
    count = f"{run['devices']} of {run['devices'] + out}" if out else f"{run['devices']}"
    facts = [f"{count} × {kinds[0] if len(kinds) == 1 else run['platform']}"]
    if len(run["hosts"]) > 1:
        facts.append(f"{len(run['hosts'])} hosts")
    facts.append(f"jax {run['jax_version']}" if run["jax_version"] else "jax version not known")
    if record and (axes := _split_axes(record.get("mesh", {}))):
        facts.append(f"mesh {axes}")
    if is_unrecorded(document):
        known = facts if run["devices"] else []
        return " · ".join(map(printable, [*known, "nothing recorded"]))
    time = step_time(document)
    found = len(document["steps"])
    facts.append(f"{time.used if time else 0} of {found} steps used")
    return " · ".join(printable(fact) for fact in facts)


def _split_axes(mesh: Mapping[str, int]) -> str:
    """``data 2 × expert 4``: the axes that split anything."""
    return " × ".join(f"{axis} {size}" for axis, size in mesh.items() if size > 1)


def problems(document: Document) -> list[str]:
    """What went wrong while the run was captured, as far as its folder tells."""
    found = problems_of(document["run"])
    if document["run"].get("out_of_memory"):
        path = document["run"]["path"]
        found.append(f"{command_line('memory', 'explain-oom', path)} explains it")
    return found


def lead(document: Document) -> tuple[str, ...]:
    """What to do where nothing was recorded: the command, and what its input is."""
    if document["run"].get("out_of_memory"):
        return (command_line("memory", "explain-oom", document["run"]["path"]),)
    return ("moeprof memory explain-oom LOG", "if memory ran out: LOG is what the script printed")


def of_cores(document: Document) -> str:
    """What times of virtual devices are worth; empty where devices are real ones."""
    run = document["run"]
    if run["platform"] != "cpu" or run["devices"] <= max(len(run["hosts"]), 1):
        return ""
    whose = "the hosts'" if len(run["hosts"]) > 1 else "the host's"
    return (
        f"The {run['devices']} devices are virtual ones that share {whose} cores: times say where "
        "the work is, and nothing of an accelerator's speed."
    )


def overlap(document: Document) -> str:
    """Why op time is more than the step; empty where it is not."""
    time = step_time(document)
    whole_ns = sum(part.duration_ns for part in parts(document))
    if time is None or basis(document) != "per device and step" or whole_ns <= time.median_ns:
        return ""
    where = "threads" if document["run"]["platform"] == "cpu" else "streams"
    return f"more than the step, as several {where} run at once"


def unexplained(document: Document) -> str:
    """The shares that no component explains, told even where they are nothing."""
    shares = {part.component: part.share for part in parts(document)}
    return " · ".join(
        f"{label(name)} {format_percent(shares.get(name, 0.0))}"
        for name in ("unattributed", "other")
    )


def named_by(document: Document) -> str:
    """How the parts are known: by what the program says, by its structure, by a guess.

    Where the user gave rules, by these; what is not known last. Empty without a breakdown.
    """
    found = document["analyses"].get("breakdown", NO_FINDING)["headline"]
    known = {str(metric["metric"]): metric["value"] for metric in found}
    by_rules = known.get("named_by_rules_share")
    told = {
        **({"by your rules": by_rules} if by_rules is not None else {}),
        "by the program": known.get("named_by_program_share"),
        "by structure": known.get("named_by_structure_share"),
        "guessed": known.get("guessed_share"),
    }
    shares = {what: share for what, share in told.items() if isinstance(share, float | int)}
    if len(shares) < len(told):
        return ""
    none = known.get("unattributed_share")
    if isinstance(none, float | int) and none > 0:
        shares["not known"] = none
    words = (f"{what} {format_percent(share)}" for what, share in shares.items())
    return f"named {', '.join(words)}"


def told_of_names(document: Document) -> str:
    """What the user's rules name and changed; empty without rules. Parts as notes have them."""
    names = document["run"].get("names")
    notes = document["analyses"].get("breakdown", NO_FINDING)["notes"]
    begin = f"{PurePath(names['file']).name}: " if names else ""
    return next((note for note in notes if begin and note.startswith(begin)), "")


def with_titles(note: str) -> str:
    """A note on rules with the parts that changed as bars have them: grouped GEMM → router."""
    return _CHANGED.sub(lambda found: f"{label(found[1])} → {label(found[2])} ", note)


def unknown_parts(document: Document) -> str:
    """Why nobody can say where the step goes; empty where the parts are known."""
    if parts(document):
        return ""
    if is_unrecorded(document):
        return f"Nothing was recorded. Next: {', '.join(lead(document))}."
    if failed := withheld_by(document, "breakdown"):
        names = " and ".join(map(printable, failed))
        return f"Where the step goes is withheld: {names} failed, so no share can be trusted."
    if "breakdown" not in document["analyses"]:
        return "Where the step goes was not asked for."
    return "Where the step goes is not known: this trace holds no device work."


def command(document: Document, verb: str, *options: str) -> str:
    """The `moeprof` command line that reproduces a part of the report."""
    return command_line(verb, document["run"]["path"], *options)


def command_line(*words: str) -> str:
    """`moeprof` with `words`, quoted for a shell."""
    return printable(shlex.join(["moeprof", *words]))
