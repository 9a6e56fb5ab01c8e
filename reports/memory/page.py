"""Question: what stands where on the page of a memory projection, one HTML file on its own?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moeprof.answers.bars import Figure
from moeprof.reports.memory import figures, words
from moeprof.reports.memory.document import (
    LeverInfo,
    MemoryDocument,
    MemoryRow,
    to_json,
)
from moeprof.reports.memory.phases import Component
from moeprof.reports.parts.templating import rendered, write
from moeprof.reports.parts.views import Cell, Column, TableView, cell
from moeprof.units import format_percent

_LEADING = 3
_KINDS = {"fits": "ok", "borderline": "warn", "oom": "fail"}


@dataclass(frozen=True)
class Mark:
    """One cell of the grid."""

    text: str
    verdict: str
    title: str


@dataclass(frozen=True)
class Line:
    """One strategy of the grid."""

    strategy: str
    marks: tuple[Mark, ...]
    largest: str
    breaks_first: str


@dataclass(frozen=True)
class Leading:
    """One change that would help most: how much it gains, what it is, what then."""

    gain: str
    change: str
    then: str


@dataclass(frozen=True)
class MemoryView:
    """The page, top to bottom."""

    title: str
    model: str
    facts: tuple[str, ...]
    said: tuple[str, ...]
    verdict: str
    verdict_kind: str
    detail: str
    batches: tuple[str, ...]
    grid: tuple[Line, ...]
    inside: Figure | None
    outside: Figure | None
    has_outside_limit: bool
    account: TableView
    compiled: TableView | None
    compiler: str
    stages: Figure | None
    phases: TableView | None
    phase_rows: TableView | None
    limits: tuple[str, ...]
    miss: str
    leading: tuple[Leading, ...]
    levers: Figure | None
    lever_table: TableView | None
    notes: tuple[str, ...]
    command: str


def write_page(document: MemoryDocument, out: Path) -> None:
    """Write the page to `out`.

    Raises:
        MoeprofError: `out` cannot be written.
    """
    write(render(document), out, "--html")


def render(document: MemoryDocument) -> str:
    """The page as text: UTF-8 safe, no reference to the network."""
    return rendered("memory.html", [to_json(document)], page=memory_view(document))


def memory_view(document: MemoryDocument) -> MemoryView:
    """All that the template shows."""
    row = words.shown(document)
    miss = words.near_miss(document)
    found = (miss["levers"] or []) if miss else []
    model = str(words.group(document, "model")["name"])
    return MemoryView(
        title=f"What fits: {model}",
        model=words.model_line(document),
        facts=(words.plan_line(document), words.pool_line(document)),
        said=tuple(document["said"]),
        verdict=" ".join(words.summary_lines(document)),
        verdict_kind=_KINDS.get(row["verdict"], "warn"),
        detail=words.cell_name(row),
        batches=tuple("" if n is None else str(n) for n in words.batches(document)),
        grid=_grid(document),
        inside=figures.inside(document),
        outside=figures.outside(document),
        has_outside_limit=not words.is_allocating(document),
        account=_account(row),
        compiled=_compiled(row),
        compiler=" ".join(filter(None, (f"{words.compiler(row)}.", words.compiled_range(row)))),
        stages=figures.stages(row),
        phases=_phases(row),
        phase_rows=_phase_rows(row),
        limits=tuple(words.limits(document, row)),
        miss=words.miss_title(miss) if miss else "",
        leading=tuple(map(_leading, found[:_LEADING])),
        levers=figures.levers(found),
        lever_table=_levers(found) if found else None,
        notes=tuple(row["notes"]),
        command=words.command(document, "--html", "memory.html"),
    )  # fmt: skip


def _leading(lever: LeverInfo) -> Leading:
    return Leading(
        gain=words.saving(lever),
        change=lever["name"],
        then=f"{words.THEN[lever['verdict']]} ({lever['price']})",
    )


def _grid(document: MemoryDocument) -> tuple[Line, ...]:
    lines = []
    for name in words.strategies(document):
        rows = [words.row_at(document, name, pdbs) for pdbs in words.batches(document)]
        end = document["first_to_break"][name]
        lines.append(
            Line(
                strategy=name,
                marks=tuple(_mark(row) for row in rows),
                largest=words.largest(document, name),
                breaks_first=f"at {end['pdbs']}: {end['what']}" if end and end["what"] else "",
            )
        )
    return tuple(lines)


def _mark(row: MemoryRow | None) -> Mark:
    if row is None:
        return Mark("", "none", "not asked for")
    return Mark(words.mark(row), row["verdict"], words.verdict_line(row))


def _account(row: MemoryRow) -> TableView:
    columns = (
        Column("component", "what fills the memory", False),
        Column("pool", "args: given to the step; temp: XLA's arena; outside: beside it", False),
        Column("size", "bytes, in binary units", True),
        Column("share", "of all three pools together", True),
        Column("confidence", "exact: follows from the program's shapes; low: an estimate", False),
        Column("formula", "how the size is computed, with the numbers put in", False),
        Column("source", "where the formula and its constants are from", False),
    )
    ordered = sorted(
        row["components"], key=lambda c: (words.POOLS.index(c["pool"]), -(c["bytes"] or 0))
    )
    rows = tuple(_component(c, row["total_bytes"]) for c in ordered)
    return TableView("account-table", f"Account of {words.cell_name(row)}", columns, rows)


def _compiled(row: MemoryRow) -> TableView | None:
    """The compiler's totals against the closed form's, then its buffers by content."""
    if "compiled" not in row:
        return None
    info = row["compiled"]
    columns = (
        Column("what", "a pool, or the buffers of one content at the compiler's peak", False),
        Column("closed form", "as projected", True),
        Column("compiled", "as XLA's compiler lays it out", True),
    )
    totals = [
        (cell(words.POOL_TITLES[pool]), _size(ours), _size(theirs))
        for pool, ours, theirs in (
            ("args", row["args_bytes"], info["args_bytes"]),
            ("temp", row["temp_bytes"], info["temp_bytes"]),
        )
    ]
    parts = [
        (cell(words.part_name(part)), Cell("", None), _size(part["bytes"]))
        for part in info["parts"]
    ]
    return TableView("compiled-table", "The compiler's plan", columns, (*totals, *parts))


def _phases(row: MemoryRow) -> TableView | None:
    """Every phase of the run, with a verdict on device and host."""
    if len(row["phases"]) < 2:
        return None
    columns = (
        Column("phase", "part of the run, in the order in which it comes to them", False),
        Column("in the pool", "args and temp of one device", True),
        Column("beside the pool", "outside, of one device", True),
        Column("device", "whether it fits one device", False),
        Column("of a host", f"memory of one host, of {row['host']['devices']} devices", True),
        Column("host", "whether that fits; empty where the host's memory was not given", False),
    )
    rows = []
    for one in row["phases"]:
        args, temp = one["args_bytes"], one["temp_bytes"]
        inside = None if args is None or temp is None else args + temp
        on_host = "" if one["host_verdict"] is None else _verdict_word(one["host_verdict"])
        rows.append(
            (
                cell(one["name"]),
                _size(inside),
                _size(one["outside_bytes"]),
                cell(_verdict_word(one["verdict"])),
                _size(one["host_bytes"]),
                cell(on_host),
            )
        )
    return TableView("phase-table", "Phases of the run", columns, tuple(rows))


def _verdict_word(verdict: str) -> str:
    text = {"oom": "out of memory", "unknown": words.CANNOT_TELL}.get(verdict, verdict)
    return f"{words.MARKS[verdict]} {text}"


def _phase_rows(row: MemoryRow) -> TableView | None:
    """What fills the phases beside the step, and what a step keeps on a host."""
    found = [(one["name"], part) for one in row["phases"] for part in one["components"]]
    if not found:
        return None
    columns = (
        Column("phase", "part of the run", False),
        Column("component", "what fills the memory", False),
        Column("pool", "args, temp, outside: of a device; host: of one host", False),
        Column("size", "bytes, in binary units", True),
        Column("confidence", "exact: follows from shapes; low: an estimate", False),
        Column("formula", "how the size is computed, with the numbers put in", False),
        Column("source", "where the formula and its constants are from", False),
    )
    rows = tuple(
        (
            cell(name),
            cell(part["name"]),
            cell(part["pool"]),
            _size(part["bytes"]),
            cell(part["confidence"]),
            Cell(part["formula"], part["formula"]),
            Cell(part["source"], part["source"]),
        )
        for name, part in found
    )
    return TableView("phase-rows", "What fills each phase beside the step", columns, rows)


def _size(size_bytes: int | None) -> Cell:
    return Cell(words.size(size_bytes), size_bytes)


def _component(part: Component, whole: int | None) -> tuple[Cell, ...]:
    size = part["bytes"]
    share = size / whole if size is not None and whole else None
    shown = Cell("" if share is None else format_percent(share), share, None, share)
    return (
        cell(part["name"]),
        cell(part["pool"]),
        Cell(words.size(size), size),
        shown,
        cell(part["confidence"]),
        Cell(part["formula"], part["formula"]),
        Cell(part["source"], part["source"]),
    )


def _levers(found: list[LeverInfo]) -> TableView:
    columns = (
        Column("change", "what to change", False),
        Column("gains", "room in XLA's pool, against now", True),
        Column("then", "verdict with that change alone", False),
        Column("price", "what it costs", False),
    )
    rows = tuple(
        (
            cell(lever["name"]),
            Cell(words.size(lever["saved_bytes"]), lever["saved_bytes"]),
            cell(words.THEN[lever["verdict"]]),
            Cell(lever["price"], lever["price"]),
        )
        for lever in found
    )
    return TableView("lever-table", "What would help", columns, rows)
