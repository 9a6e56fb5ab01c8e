"""Question: what does a document say in a few words: which run, can it be trusted, how long is
a step, and where does it go?

Text and page both start with these; nothing here is computed from anything but the document.
"""

from __future__ import annotations

import re
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from moeprof.analyzers.question import Group
from moeprof.analyzers.registry import all_questions, is_question, question
from moeprof.reports.document import Document, Finding, MetricInfo, Value, figures_of
from moeprof.reports.names import printable
from moeprof.reports.run_problems import is_unrecorded, problems_of
from moeprof.reports.trust_words import withheld_by
from moeprof.reports.values import is_number
from moeprof.units import format_count, format_ns, format_percent

NAME_WIDTH = 60
"""Where a name stands in a sentence or heading, it is cut to this many characters."""

_NO_FINDING: Finding = {"question": "", "headline": [], "columns": [], "rows": [], "notes": []}
_SPELLED = {
    "gemm": "GEMM", "mlp": "MLP", "moe": "MoE", "mfu": "MFU", "hfu": "HFU", "flops": "FLOPs",
}  # fmt: skip

_CHANGED = re.compile(r"\b([a-z_]+) → ([a-z_]+) (?=\d)")
"""A part that rules changed, in their note."""
_BETWEEN = {
    "between_idle": "idle between steps",
    "between_other": "other work between",
}


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
    used = [step["duration_ns"] for step in document["steps"] if step["used"]]
    if not used:
        return None
    return StepTime(
        statistics.median(used), min(used), max(used), len(used), len(document["steps"])
    )


def interval(document: Document) -> Interval | None:
    """The mean interval, least and most; None where no used step is followed by another."""
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


def rows(document: Document, name: str) -> list[dict[str, Value]]:
    """The rows of one analysis; empty where it was not run."""
    finding = document["analyses"].get(name)
    return finding["rows"] if finding else []


def headline(document: Document, name: str) -> dict[str, Value]:
    """The headline figures of one analysis by metric; empty where it was not run."""
    finding = document["analyses"].get(name, _NO_FINDING)
    return figures_of(finding)


def title(name: str) -> str:
    """The heading of a question."""
    return question(name).title if is_question(name) else name.replace("_", " ").capitalize()


def first_columns(name: str) -> tuple[str, ...]:
    """Columns of a question's table that are read first, and left out last."""
    return question(name).first if is_question(name) else ()


def grouped(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Questions by the group in which a page shows them, what to do first.

    What is no question of this version comes last.
    """
    left = set(names)
    found: dict[str, list[str]] = {Group.FINDINGS.value: []}
    for each in all_questions():
        if each.name in left:
            found.setdefault(each.group.value, []).append(each.name)
    more = [name for name in names if not is_question(name)]
    return [(group, members) for group, members in (*found.items(), ("More", more)) if members]


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


def basis(*documents: Document) -> str:
    """What the breakdown's times are taken over; of several runs every basis that one has."""
    found = [
        str(metric["value"])
        for document in documents
        for metric in document["analyses"].get("breakdown", _NO_FINDING)["headline"]
        if metric["metric"] == "basis"
    ]
    return " or ".join(dict.fromkeys(found)) or "per device and step"


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
    found = document["analyses"].get("breakdown", _NO_FINDING)["headline"]
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
    notes = document["analyses"].get("breakdown", _NO_FINDING)["notes"]
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


def count_of(number: int) -> str:
    """``1 row``, ``12 rows``."""
    return f"{format_count(number)} row{'' if number == 1 else 's'}"


def label(name: str) -> str:
    """A component's or metric's name as read by people: ``grouped_gemm`` is "grouped GEMM"."""
    if name in _BETWEEN:
        return _BETWEEN[name]
    words = printable(name.replace("_", " ")).split(" ")
    return " ".join(_SPELLED.get(word, word) for word in words) or "(no name)"


def command(document: Document, verb: str, *options: str) -> str:
    """The `moeprof` command line that reproduces a part of the report."""
    return command_line(verb, document["run"]["path"], *options)


def command_line(*words: str) -> str:
    """`moeprof` with `words`, quoted for a shell."""
    return printable(shlex.join(["moeprof", *words]))


def run_labels(documents: Sequence[Document]) -> list[str]:
    """The shortest end of each run's path that tells it from the others."""
    paths = [PurePath(document["run"]["path"]) for document in documents]
    longest = max((len(path.parts) for path in paths), default=0)
    for depth in range(1, longest + 1):
        labels = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(labels)) == len(labels):
            return [printable(text) for text in labels]
    return [printable(f"{path} ({place})") for place, path in enumerate(paths, start=1)]


def numbers(values: Sequence[Value]) -> bool:
    """Whether a column holds figures: no text and no bool, missing ones aside."""
    return all(value is None or is_number(value) for value in values)
