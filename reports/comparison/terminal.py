"""Question: how does the difference of two runs read on a terminal of 80 columns?

The verdict first, then what it is made of, then which ops to look at, then how far to trust it.
Changes within the noise are named, never led with.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from moeprof.analyzers.comparison.noise import BEYOND, WITHIN
from moeprof.answers import story
from moeprof.answers.values import number, printable, shortened, signed
from moeprof.reports.comparison import words
from moeprof.reports.comparison.document import ComparisonDocument, GateInfo, Row
from moeprof.reports.parts import phrases
from moeprof.reports.parts.terminal import wrapped
from moeprof.reports.run import words as run_words
from moeprof.units import format_bytes, format_ns

WIDTH = 80
_FEW_OPS = 6
_FEW_WITHIN = 3
_CHANGE_WIDTH = 10
_NAME_WIDTH = 20
_INDENT = 7
_MOST_BUFFERS = 5
_MOST_SETTINGS = 8
_SIDES = ("base", "new")


def comparison_text(document: ComparisonDocument, width: int = WIDTH) -> Text:
    """The whole comparison; ``.plain`` is the text without colour.

    Lines have 80 columns; names of runs and places are cut where they need more than `width` has.
    """
    blocks = [
        [*_platforms(document), *_verdict(document)],
        _step_parts(document),
        _components(document),
        _gates(document["gates"]),
        _settings(document["settings"]["rows"]),
        _ops(document, width),
        _buffers(document),
        _runs(document, width),
        _notes(document["notes"]),
    ]
    return Text("\n\n").join([Text("\n").join(lines) for lines in blocks if lines])


def _platforms(document: ComparisonDocument) -> list[Text]:
    told = words.platforms(document)
    return _wrapped(told, "", "bold yellow") if told else []


def _verdict(document: ComparisonDocument) -> list[Text]:
    step = words.step_row(document)
    memory = Text(words.memory_sentence(document))
    if step is None:
        told = f"{words.step_unknown(document)}: see the notes"
        return [*_wrapped(told, "", "bold"), memory]
    lines = [Text(words.sentence("step", step), style="bold")]
    if (token := words.token_row(document)) is not None:
        lines.append(Text(words.tokens_sentence(token), style="bold"))
        lines.append(Text(words.sentence("time per token", token), style="bold"))
    return [*lines, memory]


def _buffers(document: ComparisonDocument) -> list[Text]:
    """What lies in memory at the peak of one run and not of the other, the largest first."""
    rows = words.buffers(document)
    if not rows:
        return []
    lines = [Text("In memory at the peak", style="bold")]
    for row in rows[:_MOST_BUFFERS]:
        change = signed(number(row["change_bytes"]), format_bytes)
        counts = f"{row['base_buffers']} → {row['new_buffers']} × {row['shape'] or 'all'}"
        told = f"{words.buffer_kind(row)}: {printable(counts)}"
        first, *rest = wrapped(told, WIDTH - 13)
        lines.append(Text(f" {change:>10}  {first}"))
        lines += [Text(f"{'':13}{line}") for line in rest]
    if len(rows) > _MOST_BUFFERS:
        lines.append(Text(f"… and {len(rows) - _MOST_BUFFERS} more kinds: --json has all"))
    return lines


def _step_parts(document: ComparisonDocument) -> list[Text]:
    rows = words.step_parts(document)
    if not rows:
        return []
    lines = [Text("Where the step's change is (adds up to it)", style="bold")]
    return lines + [_line(row, str(row["part"]), _between(row)) for row in rows]


def _between(row: Row) -> str:
    times = words.from_to(format_ns, row["base_ns"], row["new_ns"])
    return f"{times}, {row['verdict']}" if row["verdict"] != BEYOND else times


def _components(document: ComparisonDocument) -> list[Text]:
    total, parts = words.total(document), words.components(document)
    if total is None:
        return []
    ops = words.ops(document)
    shown = words.clear(parts, total)
    lines = _wrapped(words.sentence("op time", total), "", "bold")
    if not parts:
        return lines + _wrapped("components are not compared: see the notes", "  ")
    dearest = max(shown, key=lambda row: number(row["change_ns"]), default=None)
    for row in shown:
        told = words.reasons(row, ops)
        if row is dearest and row["verdict"] == BEYOND and number(row["change_ns"]) > 0:
            told += "  ← look here"
        lines += _lines(row, str(row["component"]), told)
    if not shown:
        lines += _wrapped("no component changed by much and beyond noise", "  ")
    rest = [row for row in parts if row not in shown and row["change_ns"]]
    lines += _rest("within noise", [row for row in rest if row["verdict"] == WITHIN])
    return lines + _rest("small", [row for row in rest if row["verdict"] != WITHIN])


def _rest(name: str, rows: Sequence[Row]) -> list[Text]:
    """The largest of the changes that are no headline, and how many there are."""
    if not rows:
        return []
    named = ", ".join(
        f"{story.label(str(row['component']))} {signed(number(row['change_ns']), format_ns)}"
        for row in rows[:_FEW_WITHIN]
    )
    left = len(rows) - _FEW_WITHIN
    more = f", and {left} more" if left > 0 else ""
    return _wrapped(f"{name}: {named}{more}", "  ", "dim")


def _settings(rows: Sequence[Row]) -> list[Text]:
    """What was set differently, as far as capture wrote it down."""
    lines = [Text("Set differently", style="bold")] if rows else []
    for row in rows[:_MOST_SETTINGS]:
        told = [shortened(printable(str(row[side])), WIDTH) or words.unset(row) for side in _SIDES]
        lines += _hanging("  ", f"{printable(str(row['setting']))}: {' → '.join(told)}")
    if len(rows) > _MOST_SETTINGS:
        lines.append(Text(f"  … and {len(rows) - _MOST_SETTINGS} more: --json has all"))
    return lines


def _ops(document: ComparisonDocument, width: int) -> list[Text]:
    total = words.total(document)
    rows = words.clear(words.ops(document), total) if total else []
    if not rows:
        return []
    lines = [Text("Look at", style="bold")]
    for row in rows[:_FEW_OPS]:
        phase = "" if row["phase"] == "other" else f" {row['phase']}"
        place = f"{story.label(str(row['component']))}{phase}: {printable(str(row['op']))}"
        facts = [str(row[name]) for name in ("scope", "shape") if row[name]]
        facts += [] if row["match"] == "same" else [str(row["match"])]
        details = shortened(printable(", ".join(facts)), 2 * (width - 16))
        lines += _hanging(_change(row), f"{place}; {details}" if details else place)
    if len(rows) > _FEW_OPS:
        lines.append(Text(f"… and {len(rows) - _FEW_OPS} more ops: --json has all", style="dim"))
    return lines


def _gates(gates: Sequence[GateInfo]) -> list[Text]:
    lines = [Text("Gates", style="bold")] if gates else []
    for gate in gates:
        style = {"passed": "green", "failed": "red"}.get(gate["verdict"], "yellow")
        text = f"{gate['verdict']} {printable(gate['expression'])}: {words.gate_sentence(gate)}"
        lines += _wrapped(text, "  ", style)
    return lines


def _runs(document: ComparisonDocument, width: int) -> list[Text]:
    lines = []
    for name, side in (("base", document["base"]), ("new", document["new"])):
        path = shortened(printable(side["run"]["path"]), width - _INDENT)
        lines.append(Text.assemble((f"{name:<{_INDENT}}", "bold"), path))
        run = words.as_document(side)
        told = f"{run_words.described_run(run)} · {phrases.described_trust(run)}"
        lines += _wrapped(told, " " * _INDENT)
        for check in phrases.troubles(run):
            text = f"{check['verdict']} {printable(check['check'])}: {printable(check['detail'])}"
            lines += _wrapped(text, " " * _INDENT, "yellow")
    return lines


def _notes(notes: Sequence[str]) -> list[Text]:
    return [
        line
        for note in (words.BASIS, *notes)
        for line in _hanging(" - ", printable(run_words.with_titles(note)))
    ]


def _line(row: Row, name: str, text: str) -> Text:
    label = shortened(story.label(name), _NAME_WIDTH + 4)
    return Text(f"{_change(row)}{label:<{_NAME_WIDTH + 4}}{text}")


def _lines(row: Row, name: str, text: str) -> list[Text]:
    label = shortened(story.label(name), _NAME_WIDTH - 2)
    return _hanging(f"{_change(row)}{label:<{_NAME_WIDTH}}", text)


def _change(row: Row) -> str:
    return f"{signed(number(row['change_ns']), format_ns):>{_CHANGE_WIDTH}}  "


def _hanging(head: str, text: str) -> list[Text]:
    """`text` behind `head`; further lines stand below its start."""
    lines = wrapped(text, WIDTH - len(head))
    return [
        Text((head if place == 0 else " " * len(head)) + line) for place, line in enumerate(lines)
    ]


def _wrapped(text: str, indent: str, style: str = "") -> list[Text]:
    return [Text(line, style=style) for line in wrapped(text, WIDTH, first=indent, indent=indent)]
