"""Question: what does a page or a terminal say of a run in a few words?

What it answers, a sentence per question, and which of several is fastest; which run it is, what
went wrong (how its processes ended, memory that ran out), what is not known and what to do next.
Nothing here is computed from anything but the document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from moeprof.analyzers.registry import is_question, question
from moeprof.answers.document import (
    NO_FINDING,
    Document,
    MetricInfo,
    OutOfMemory,
    RunInfo,
    RunRecord,
    is_unrecorded,
)
from moeprof.answers.story import basis, count_of, label, metric_name, parts, run_labels, step_time
from moeprof.answers.values import NONE, printable, written
from moeprof.ingest.sources.run_record import Ending, described_exit, described_seconds, told
from moeprof.reports.parts.phrases import command_line, withheld_by
from moeprof.units import format_bytes, format_ns, format_percent

_NOT_KNOWN = "Not known: the notes say why."


def sentence(document: Document, name: str) -> str:
    """What the answer to one question says, in one sentence."""
    finding = document["analyses"][name]
    if failed := withheld_by(document, name):
        return f"Withheld: {' and '.join(failed)} failed, so no figure of it can be trusted."
    status = finding.get("status", "ok")
    if status == "none":
        return NONE
    if status == "not_known":
        return _NOT_KNOWN
    say = question(name).sentence if is_question(name) else None
    if say:
        return say(document) or NONE
    if finding["headline"]:
        return f"{' · '.join(map(described_metric, finding['headline']))}."
    return count_of(len(finding["rows"])) if finding["rows"] else NONE


def told_by_figures(document: Document, name: str) -> bool:
    """Whether headline figures stand beside the sentence: else they are it, or there are none."""
    has_sentence = is_question(name) and question(name).sentence is not None
    return has_sentence and document["analyses"][name].get("status", "ok") != "none"


def reason(document: Document, name: str) -> str:
    """Why there is nothing to answer with, as a sentence; empty where something is."""
    why = document["analyses"][name].get("why", "")
    return printable(f"{why[:1].upper()}{why[1:]}.") if why else ""


def described_metric(metric: MetricInfo) -> str:
    """``name value``, with the unit."""
    return f"{metric_name(metric)} {written(metric['value'], metric['unit'])}"


def comparison_sentence(documents: Sequence[Document]) -> str:
    """Which of several runs has the shortest step, and by how much; empty where it has no rival."""
    times = [
        (time.median_ns, name)
        for document, name in zip(documents, run_labels(documents), strict=True)
        if (time := step_time(document))
    ]
    if len(times) < 2:
        return ""
    (least_ns, best), (most_ns, worst) = min(times), max(times)
    if least_ns == most_ns:
        return f"All {len(times)} runs take the same time per step: {format_ns(least_ns)}."
    return (
        f"{best} has the shortest step: {format_ns(least_ns)}, "
        f"{most_ns / least_ns:.2f} times as fast as {worst} ({format_ns(most_ns)})."
        f"{_not_told_apart(documents)}"
    )


def _not_told_apart(documents: Sequence[Document]) -> str:
    """Names the runs whose steps overlap with those of the run that has the shortest one."""
    named = zip(run_labels(documents), map(step_time, documents), strict=True)
    known = sorted(
        ((name, time) for name, time in named if time), key=lambda pair: pair[1].median_ns
    )
    (_, first), *others = known
    close = [name for name, time in others if time.least_ns <= first.most_ns]
    if not close:
        return ""
    return f" Steps of {', '.join(close)} overlap with its steps: measure more to tell them apart."


_CHANGED = re.compile(r"\b([a-z_]+) → ([a-z_]+) (?=\d)")
"""A part that rules changed, in their note."""


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
    jax = f"jax {run['jax_version']}" if run["jax_version"] else "jax version not known"
    facts.append("PyTorch" if run.get("framework") == "pytorch" else jax)
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
    return names.get("told", "") if names else ""


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


def problems_of(run: RunInfo) -> list[str]:
    """All that is known to have gone wrong; empty where nothing did."""
    record = run.get("record")
    memory = run.get("out_of_memory", [])
    found = [_of_memory(one) for one in memory]
    return [*found, *(_of_record(record, has_message=bool(memory)) if record is not None else [])]


def _of_record(record: RunRecord, *, has_message: bool) -> list[str]:
    found = []
    if record["exit_code"]:
        seconds = record.get("duration_s")
        found.append(f"the script ended with {described_exit(record['exit_code'])}")
        if seconds is not None:
            found.append(f"the command ran {described_seconds(seconds)}")
    if record["status"] == "partial":
        found.append("the capture is partial: it holds less than was asked for")
    rows = record.get("processes", [])
    if len(rows) > 1:
        endings = [
            Ending(row["process"], row["host"], row["exit_code"], tuple(row["problems"]))
            for row in rows
        ]
        texts = told(endings)
    else:
        texts = record["problems"]
    told_before = f"exit code {record['exit_code']}"
    texts = [t for t in texts if len(rows) > 1 or not t.startswith(f"ended with {told_before}")]
    return [*found, *(text for text in texts if not (has_message and "explain-oom" in text))]


def _of_memory(one: OutOfMemory) -> str:
    """What was asked, in use, free and too much, as far as the message tells."""
    sizes = (
        (one["request_bytes"], "asked for"),
        (one["in_use_bytes"], "in use"),
        (one["free_bytes"], "free"),
        (one["excess_bytes"], "too much"),
    )
    parts = [f"{_gib(size)} {what}" for size, what in sizes if size is not None]
    if one["limit_bytes"] is not None and one["in_use_bytes"] is not None:
        of = f"{_gib(one['in_use_bytes'])} of a pool of {_gib(one['limit_bytes'])} in use"
        parts = [of if part.endswith("in use") else part for part in parts]
    where = f" of device {', '.join(one['devices'])}" if one["devices"] else ""
    return f"out of memory: {', '.join(parts) or one['sentence']} ({one['memory']}{where})"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else format_bytes(size)
