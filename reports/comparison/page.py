"""Question: what stands where on the page of a comparison, one HTML file on its own?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moeprof.analyzers.comparison.noise import BEYOND, WITHIN
from moeprof.answers import story
from moeprof.answers.bars import Figure
from moeprof.answers.colours import HATCHED, colour
from moeprof.answers.document import Finding
from moeprof.answers.values import number, printable, signed
from moeprof.reports.comparison import figures, words
from moeprof.reports.comparison.document import (
    Changes,
    ComparisonDocument,
    GateInfo,
    Row,
    SideInfo,
    comparison_json,
)
from moeprof.reports.parts import phrases
from moeprof.reports.parts.templating import rendered, write
from moeprof.reports.parts.views import (
    Cell,
    Check,
    Column,
    Segment,
    TableView,
    cell,
    check_views,
    finding_table,
    segments,
    stacked,
)
from moeprof.reports.run import words as run_words
from moeprof.units import format_ns, format_percent

_LEADING = 3
_GATE_KINDS = {"passed": ("ok", "✓"), "failed": ("fail", "✗"), "not known": ("warn", "?")}
_OP_COLUMNS = (
    *("op", "change_ns", "component", "phase", "base_ns", "new_ns", "change_share", "noise_ns"),
    *("verdict", "base_calls", "new_calls", "shape", "scope", "match"),
)
_CHANGES = ("change_ns", "change_bytes", "change_share")
_BUFFER_COLUMNS = (
    *("content", "component", "shape", "change_bytes", "base_buffers", "new_buffers"),
    *("op", "source"),
)


@dataclass(frozen=True)
class SideView:
    """One of the two runs."""

    role: str
    label: str
    path: str
    facts: str
    command: str | None
    window: str | None
    problems: tuple[str, ...]
    verdict: str
    trust: str
    troubles: tuple[Check, ...]
    passed: tuple[Check, ...]
    step: str
    segments: tuple[Segment, ...]
    ranked: tuple[Segment, ...]


@dataclass(frozen=True)
class Leading:
    """One change that matters: how much, of what, and why."""

    name: str
    colour: str
    is_hatched: bool
    change: str
    reason: str


@dataclass(frozen=True)
class GateView:
    """One gate: ``kind`` chooses its colour, mark and verdict say the same without one."""

    expression: str
    kind: str
    mark: str
    verdict: str
    told: str


@dataclass(frozen=True)
class ComparisonView:
    """The page, top to bottom; figures and tables are None where nothing is known."""

    title: str
    platforms: str
    verdict: str
    verdict_kind: str
    step: str
    step_detail: str
    memory: str
    sides: tuple[SideView, ...]
    legend: tuple[Segment, ...]
    gates: tuple[GateView, ...]
    leading: tuple[Leading, ...]
    rest: str
    step_figure: Figure | None
    step_table: TableView
    parts_sentence: str
    parts_figure: Figure | None
    parts_table: TableView
    ops_sentence: str
    ops_table: TableView
    buffers_figure: Figure | None
    memory_table: TableView | None
    buffers_table: TableView
    settings: TableView | None
    has_records: bool
    noise: str
    notes: tuple[str, ...]
    command: str


def write_page(document: ComparisonDocument, out: Path, option: str = "--html") -> None:
    """Write the page to `out`, which ``option`` named.

    Raises:
        MoeprofError: `out` cannot be written.
    """
    write(render(document), out, option)


def render(document: ComparisonDocument) -> str:
    """The page as text: UTF-8 safe, no reference to the network."""
    page = comparison_view(document)
    return rendered("comparison.html", [comparison_json(document)], page=page)


def comparison_view(document: ComparisonDocument) -> ComparisonView:
    """All that the template shows."""
    step, total = words.step_row(document), words.total(document)
    parts, ops = words.components(document), words.ops(document)
    sides = _sides(document)
    kind, verdict = _verdict(document)
    clear = words.clear(parts, total) if total else []
    return ComparisonView(
        title=" → ".join(side.label for side in sides),
        platforms=words.platforms(document),
        verdict=verdict,
        verdict_kind=kind,
        step=words.from_to(format_ns, step["base_ns"], step["new_ns"]) if step else "not known",
        step_detail=f"{words.signed_share(step)}, {words.noise(step)}" if step else "see the notes",
        memory=words.memory_sentence(document),
        sides=sides,
        legend=stacked(segment for side in sides for segment in side.segments),
        gates=tuple(map(_gate, document["gates"])),
        leading=tuple(_leading(row, ops) for row in clear[:_LEADING]),
        rest=_rest(parts, clear),
        step_figure=figures.step(document),
        step_table=_table(document["step"], "step", "The step and what it is made of"),
        parts_sentence=_parts_sentence(parts, total),
        parts_figure=figures.components(document),
        parts_table=_parts_table(parts, ops),
        ops_sentence=_ops_sentence(ops, total),
        ops_table=_table(
            {"columns": document["rows"]["columns"], "rows": ops},
            "ops",
            "Operations by the size of their change",
            _OP_COLUMNS,
        ),
        buffers_figure=figures.buffers(document),
        memory_table=_memory(document["memory"]),
        buffers_table=_table(
            {"columns": document["buffers"]["columns"], "rows": words.buffers(document)},
            "buffers",
            "In memory at the peak",
            _BUFFER_COLUMNS,
        ),
        settings=_settings(document["settings"]),
        has_records=all(document[side]["run"].get("record") for side in ("base", "new")),
        noise=_noise(document),
        notes=tuple(
            printable(run_words.with_titles(note)) for note in (words.BASIS, *document["notes"])
        ),
        command=phrases.command_line("compare", *document["arguments"], "--html", "compare.html"),
    )


def _verdict(document: ComparisonDocument) -> tuple[str, str]:
    """Which kind of news it is, and the news in a sentence; that per token where tokens differ."""
    step, token = words.step_row(document), words.token_row(document)
    if step is None:
        told = words.step_unknown(document)
        return "warn", f"Which run is faster cannot be told: {told}. The notes say why."
    kind, told = _judged(step)
    if token is None:
        return kind, told
    per_token = words.sentence("time per token", token)
    other_work = f"It is of other work: {words.tokens_sentence(token)}, {per_token}."
    return _judged(token)[0], f"{told} {other_work}"


def _judged(step: Row) -> tuple[str, str]:
    """Which kind of news a change of the step is, and the news in a sentence."""
    share = step["change_share"]
    way = "faster" if number(step["change_ns"]) < 0 else "slower"
    told = f"{format_percent(abs(number(share)))} {way}"
    if number(share) >= 1:
        told = f"{words.multiple(number(share))} times as long"
    if step["verdict"] == BEYOND:
        return ("ok" if way == "faster" else "fail"), (
            f"The new run's step is {told}, more than the noise explains."
        )
    if not step["change_ns"]:
        return "ok", "The step is as long as before."
    if step["verdict"] == WITHIN:
        return "warn", (
            f"The new run's step is {told}, but steps of one run differ by as much: "
            "this may be nothing."
        )
    return "warn", (
        f"The new run's step is {told}; whether that is more than noise is not known, as "
        "it takes at least two intervals of each run to tell."
    )


def _sides(document: ComparisonDocument) -> tuple[SideView, ...]:
    found = {"base": document["base"], "new": document["new"]}
    labels = story.run_labels([words.as_document(side) for side in found.values()])
    step = words.step_row(document)
    columns = ("base_ns", "new_ns")
    parts = words.components(document)
    sums = [sum(number(row[column]) for row in parts) for column in columns]
    return tuple(
        _side(
            found[role],
            (role, label),
            format_ns(number(step[column])) if step else "not known",
            segments(_parts(parts, column, whole), max(sums)),
        )
        for role, label, column, whole in zip(found, labels, columns, sums, strict=True)
    )


def _side(side: SideInfo, names: tuple[str, str], step: str, found: Sequence[Segment]) -> SideView:
    run, record = words.as_document(side), side["run"].get("record")
    return SideView(
        role=names[0],
        label=names[1],
        path=printable(side["run"]["path"]),
        facts=run_words.described_run(run),
        command=printable(record["command"]) if record and record["command"] else None,
        window=printable(record["window"]) if record and record["window"] else None,
        problems=tuple(printable(problem) for problem in run_words.problems(run)),
        verdict=phrases.worst_verdict(run),
        trust=phrases.described_trust(run),
        troubles=check_views(phrases.troubles(run)),
        passed=check_views(phrases.passed(run)),
        step=step,
        segments=stacked(segment for segment in found if segment.share),
        ranked=tuple(sorted(found, key=lambda segment: -segment.share)),
    )


def _parts(rows: Sequence[Row], column: str, whole_ns: float) -> list[story.Part]:
    """The parts of one run that it has any of."""
    times = {str(row["component"]): number(row[column]) for row in rows}
    return [story.Part(name, ns, ns / whole_ns) for name, ns in times.items() if ns]


def _gate(gate: GateInfo) -> GateView:
    kind, mark = _GATE_KINDS[gate["verdict"]]
    told = words.gate_sentence(gate)
    return GateView(printable(gate["expression"]), kind, mark, gate["verdict"], told)


def _leading(row: Row, ops: Sequence[Row]) -> Leading:
    name = str(row["component"])
    return Leading(
        story.label(name),
        colour(name),
        name in HATCHED,
        signed(number(row["change_ns"]), format_ns),
        words.reasons(row, ops),
    )


def _rest(parts: Sequence[Row], clear: Sequence[Row]) -> str:
    """What else changed, in a sentence."""
    if not parts:
        return "Parts of the step are not compared: the notes say why."
    within = sum(row["verdict"] == WITHIN and bool(row["change_ns"]) for row in parts)
    same = sum(not row["change_ns"] for row in parts)
    small = len(parts) - len(clear) - within - same
    told = [f"{len(clear)} of {len(parts)} components changed clearly"]
    told += [f"{within} by no more than the noise"] if within else []
    told += (
        [f"{small} by less than {format_percent(words.WORTH_A_LINE)} of op time"] if small else []
    )
    told += [f"{same} not at all"] if same else []
    return f"{'; '.join(told)}."


def _parts_sentence(parts: Sequence[Row], total: Row | None) -> str:
    if total is None:
        return "Not known: the notes say why."
    return f"{words.sentence('Op time', total)}{'' if parts else ': components are not compared'}."


def _ops_sentence(ops: Sequence[Row], total: Row | None) -> str:
    if total is None or not ops:
        return "Not known: the notes say why."
    came = sum(row["match"] == "only in new" for row in ops)
    went = sum(row["match"] == "only in base" for row in ops)
    clear = len(words.clear(list(ops), total))
    return (
        f"{clear} of {len(ops)} operations changed clearly; only in base: {went}, "
        f"only in new: {came}."
    )


def _table(changes: Changes, anchor: str, caption: str, names: Sequence[str] = ()) -> TableView:
    """A table of the document, with the columns of `names` in their order (none: all)."""
    by_name = {column["name"]: column for column in changes["columns"]}
    columns = [by_name[name] for name in names or by_name]
    finding: Finding = {
        "question": "", "headline": [], "columns": columns, "rows": changes["rows"], "notes": [],
    }  # fmt: skip
    view = finding_table(finding, anchor, caption)
    rows = tuple(
        tuple(_with_sign(cell, column["name"]) for cell, column in zip(row, columns, strict=True))
        for row in view.rows
    )
    return replace(view, rows=rows)


def _with_sign(shown: Cell, name: str) -> Cell:
    """A change with its sign: a plus is told too."""
    if name not in _CHANGES or not isinstance(shown.value, int | float) or not shown.value:
        return shown
    sign = "+" if shown.value > 0 else "−"
    return replace(shown, text=f"{sign}{shown.text.removeprefix('-')}")


def _parts_table(parts: Sequence[Row], ops: Sequence[Row]) -> TableView:
    columns = (
        Column("component", "part of the model or of the runtime", False),
        Column("change", "new less base, per device and step", True),
        Column("base", "self time of its operations in base, per device and step", True),
        Column("new", "the same in new", True),
        Column("share", "change of base", True),
        Column("noise", "95 % half width of the change", True),
        Column("verdict", "whether the noise of the steps explains the change", False),
        Column("what it is made of", "the parts of the change that matter, largest first", False),
    )
    rows = tuple(
        (
            cell(story.label(str(row["component"]))),
            Cell(signed(number(row["change_ns"]), format_ns), row["change_ns"]),
            cell(row["base_ns"], "ns"),
            cell(row["new_ns"], "ns"),
            Cell(words.signed_share(row), row["change_share"]),
            cell(row["noise_ns"], "ns"),
            cell(row["verdict"]),
            Cell(told := words.reasons(row, ops), told),
        )
        for row in parts
    )
    return TableView("parts-table", "Op time of each component", columns, rows)


def _memory(changes: Changes) -> TableView | None:
    """The peak and its parts; None where nothing of them is known."""
    sizes = [row[side] for row in changes["rows"] for side in ("base_bytes", "new_bytes")]
    if all(size is None for size in sizes):
        return None
    return _table(changes, "memory", "Memory of the step's program")


def _settings(changes: Changes) -> TableView | None:
    if not changes["rows"]:
        return None
    return _table(changes, "settings", "What was set differently")


def _noise(document: ComparisonDocument) -> str:
    noise = document["noise"]
    return (
        f"Noise: {noise['method']}; {noise['base_steps']} steps of base, "
        f"{noise['new_steps']} of new."
    )
